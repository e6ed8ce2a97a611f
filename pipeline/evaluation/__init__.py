"""Predict a split, write its report, and compare two models on the same images."""
