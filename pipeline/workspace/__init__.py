"""Where a workspace lives: in the working directory, or on an object store cached there."""
