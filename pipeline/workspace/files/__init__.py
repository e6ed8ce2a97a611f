"""Files: written atomically, identified by their digest, locked by living processes."""
