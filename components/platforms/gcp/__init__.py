"""The GCP platform: a cluster of Compute Engine machines."""
