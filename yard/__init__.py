"""The `yard` command, which runs training jobs on the clusters deployed by stacks."""
