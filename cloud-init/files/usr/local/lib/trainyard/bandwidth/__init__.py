"""The bandwidth gate measures all-reduce on each node and on pairs of nodes, and drains slow nodes."""
