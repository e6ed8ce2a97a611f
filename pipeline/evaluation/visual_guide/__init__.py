"""The visual guide to one image in a trained model, and pictures of patch embeddings."""
