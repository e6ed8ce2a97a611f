"""A registered model as an HTTP service, with a page to try an image on."""
