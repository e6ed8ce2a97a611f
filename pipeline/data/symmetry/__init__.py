"""Whether a mirrored, turned or otherwise changed image still shows its class."""
