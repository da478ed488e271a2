"""Writes a new stack file (`yard init`) from a template or from the stack of a blog post."""
