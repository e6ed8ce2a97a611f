"""Tests that look at the pages of Prefect and MLflow as a person does, in headless Chromium."""
