"""The Python API beneath `patchline.python_api`: what surrounds a call, and what it returns."""
