"""What talks to Prefect: its client, settings, servers and databases."""
