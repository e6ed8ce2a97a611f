"""MLflow: the store, one run in it, its metrics, its provenance, and runs of killed processes."""
