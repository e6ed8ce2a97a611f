"""What a model's weights have seen: digests of their images, and of those of their ancestors."""
