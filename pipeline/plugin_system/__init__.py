"""Plugins: find and import them, resolve their settings, check them, create new ones."""
