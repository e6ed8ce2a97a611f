"""The registry: how a version gets there, who is champion, and why."""
