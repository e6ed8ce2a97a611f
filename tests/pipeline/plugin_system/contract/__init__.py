"""Tests of the executable contract."""
