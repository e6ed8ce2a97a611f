"""Tests of the test suite itself: patience, and that a failing test leaves nothing behind."""
