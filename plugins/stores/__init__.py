"""Where machines share a workspace, and where images may lie."""
