"""`yard bake`: builds an image from the stages that run once on a node."""
