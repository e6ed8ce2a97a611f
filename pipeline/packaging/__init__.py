"""What a registered model holds, and the proof that it works alone."""
