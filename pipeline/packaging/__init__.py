"""Build the package of a registered model, and check that it works without Patchline."""
