"""`yard reproduce`: runs the steps of a blog post on its stack, and prints its figures next to the measured ones."""
