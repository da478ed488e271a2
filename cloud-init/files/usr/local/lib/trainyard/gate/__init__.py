"""Decides on the head whether the cluster is ready (trainyard-gate)."""
