"""Models: build, describe, save, load, run and export them, and compute their cost."""
