"""`yard report`, `yard diff` and `yard pull`: what jobs did, and why they differ."""
