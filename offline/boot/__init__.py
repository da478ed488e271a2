"""Local virtual machines that take the place of a simulated cloud's machines (docs/offline.md)."""
