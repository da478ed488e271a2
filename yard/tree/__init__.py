"""Selects the files of the user's working tree that are sent to the cluster, and records the tree's git state."""
