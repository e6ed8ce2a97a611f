"""Plugins: found by entry point, imported by name, given settings, checked, written anew."""
