"""Scheduled training and prediction as Prefect deployments."""
