"""A packaged model behind an HTTP address."""
