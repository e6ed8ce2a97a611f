"""A search over settings as a Prefect flow: its trials and final fits as tasks."""
