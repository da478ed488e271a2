"""`yard reproduce`: runs the steps of a blog post, and prints the post's figures next to the measured values."""
