"""The GCP platform: a cluster of machines in Google's Compute Engine. Empty: whoever wants a module imports that."""
