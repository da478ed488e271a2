"""`yard bake`: builds an image in which the one-time bootstrap stages have already run."""
