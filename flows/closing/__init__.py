"""Runs whose process was killed: closed in MLflow and in Prefect, so that both agree."""
