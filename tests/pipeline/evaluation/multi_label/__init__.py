"""Tests of the evaluation of label sets."""
