"""`yard size`: estimates the memory that a model needs on each GPU for several layouts. All functions are pure."""
