"""Runs left open by killed processes, closed in MLflow and in Prefect so that both agree."""
