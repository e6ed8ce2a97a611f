"""The built-in plugins, found by entry point like anybody else's."""
