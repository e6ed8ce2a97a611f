"""A model built from a choice, described, saved and loaded, run, exported, and what it costs."""
