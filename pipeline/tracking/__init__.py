"""MLflow: the store, one run in it, and where the run's results come from."""
