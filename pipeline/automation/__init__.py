"""What runs without a person, without Prefect: schedules, watches, events, notifications."""
