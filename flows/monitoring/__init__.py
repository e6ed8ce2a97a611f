"""Checks of new images: what a command and a schedule do about their result."""
