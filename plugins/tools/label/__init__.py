"""A page to label the images of a folder on, those that help most first."""
