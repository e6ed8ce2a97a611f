"""The prepared store: every image read once, in the size of the model, in shards with digests."""
