"""`yard size`: how much memory a model takes on each GPU, layout by layout, and where it fits. Pure."""
