"""Local virtual machines that take the place of a simulated cloud's machines (docs/dev/offline.md)."""

MEMORY_MIB = 1024
"""Memory of a booted machine, and of its machine type in the program."""
