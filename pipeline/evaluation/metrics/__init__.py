"""Pure functions on arrays: metrics and their intervals."""
