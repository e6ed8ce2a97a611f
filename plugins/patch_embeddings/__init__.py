"""Built-in patch embeddings."""
