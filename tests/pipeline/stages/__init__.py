"""Tests of the stages of a run, and of what happens in every one of them."""
