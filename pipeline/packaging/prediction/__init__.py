"""Predictions of a packaged model for many images, written to a table."""
