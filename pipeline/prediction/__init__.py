"""Many images through a packaged model, into a table."""
