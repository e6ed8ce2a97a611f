"""Tests of the workers of a team's work pools."""
