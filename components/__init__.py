"""The cluster: from a stack file to running machines."""
