"""Hosts that exist already, reached over ssh: nothing is created, and everything goes back as it was."""
