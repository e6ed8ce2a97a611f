"""Predictions on a split, and the report about them."""
