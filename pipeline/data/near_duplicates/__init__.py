"""Images that show nearly the same: found by small thumbnails, and grouped for the splits."""
