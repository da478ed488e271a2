"""The gate, which decides on the head whether the cluster is ready."""
