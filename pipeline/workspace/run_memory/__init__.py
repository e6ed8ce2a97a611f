"""What a run records, so that it can be resumed and no stage is computed twice."""
