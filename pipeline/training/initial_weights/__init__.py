"""The weights that training starts from: found, kept in the workspace, loaded into a new model."""
