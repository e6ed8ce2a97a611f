"""Training in several processes, its ranks: how they start, share batches and agree."""
