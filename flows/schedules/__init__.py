"""Training and prediction by the clock: Prefect deployments, and the commands that keep them."""
