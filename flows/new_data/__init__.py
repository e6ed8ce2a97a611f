"""A folder that is watched: new images start a training."""
