"""Which images train, validate and test a model: by content, balanced by class, and remembered."""
