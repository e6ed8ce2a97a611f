"""Training in several processes: how they start, share batches and agree."""
