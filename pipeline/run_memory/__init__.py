"""What a run remembers, so that it can be resumed and no stage is computed twice."""
