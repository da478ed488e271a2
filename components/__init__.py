"""The Pulumi components that create a cluster from a stack file."""
