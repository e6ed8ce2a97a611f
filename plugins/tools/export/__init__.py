"""Other forms of a packaged model, each compared with the package on real images."""
