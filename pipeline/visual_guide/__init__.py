"""Pictures that show what a part of a model does to one photograph."""
