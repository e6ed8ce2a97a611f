"""The conformance checks of plugins."""
