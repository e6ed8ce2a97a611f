"""Inspection of data before training: damage, duplicates, leakage, imbalance, odd images."""
