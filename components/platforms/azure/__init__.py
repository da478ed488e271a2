"""The Azure platform: a cluster of virtual machines."""
