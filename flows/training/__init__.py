"""One training run as a Prefect flow: its stages as tasks, what it says and what it leaves."""
