"""The `yard` command: from a job file to a job that runs on the cluster of a stack."""
