"""Which range of pixel values becomes black to white: chosen once for all images of the data."""
