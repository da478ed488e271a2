"""The hosts platform: a cluster of existing hosts. `destroy` restores the earlier state of each host."""
