"""Sending events to Prefect, and the automations that post them to webhooks."""
