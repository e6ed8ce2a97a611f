"""Images as a camera, the weather or a network spoils them: arXiv 1903.12261, section 4."""
