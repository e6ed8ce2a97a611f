"""What tests use: models, commands, servers."""
