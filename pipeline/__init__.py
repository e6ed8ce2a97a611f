"""The Patchline library: everything about images and models, nothing about orchestration."""
