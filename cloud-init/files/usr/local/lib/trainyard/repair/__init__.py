"""The repair service of the head: holds spares back, finds lost nodes, and decides how faulty nodes are repaired."""
