"""The Python API beneath `patchline.py`: what a call leaves of itself, and what it returns."""
