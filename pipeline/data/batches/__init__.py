"""From the store to augmented batches, in an order that depends only on (seed, epoch)."""
