"""Files: written whole or not at all, known by their digest, locked by who lives."""
