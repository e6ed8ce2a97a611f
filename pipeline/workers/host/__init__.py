"""Keeps the machine's and the user's surroundings out of our own traffic, folders and output."""
