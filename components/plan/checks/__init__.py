"""Checks of stack files that the schema cannot express."""
