"""The worker processes that a run starts, and the events that they write."""
