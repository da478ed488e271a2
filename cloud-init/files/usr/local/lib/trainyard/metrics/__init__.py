"""Metrics of the nodes and of the cluster, in Prometheus's text format."""
