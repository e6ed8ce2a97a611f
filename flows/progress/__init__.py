"""How a command and the Prefect UI show what a run does."""
