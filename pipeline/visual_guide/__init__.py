"""Pictures of what a part of a model does to a photograph."""
