"""The Azure platform: a cluster of virtual machines. Empty: whoever wants a module imports that."""
