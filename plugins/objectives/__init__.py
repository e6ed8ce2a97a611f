"""The built-in objectives."""
