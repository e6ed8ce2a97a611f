"""What a registered model holds, and how it gets into the registry."""
