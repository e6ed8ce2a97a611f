"""Tests of what people see in the MLflow UI."""
