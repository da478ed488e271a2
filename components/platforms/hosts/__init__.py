"""The hosts platform: a cluster of existing hosts. `destroy` restores each host's earlier state."""
