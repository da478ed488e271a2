"""The gate runs on the head and decides whether the cluster is ready."""
