"""Python environments for jobs, on the shared file system. Each folder defines the environment with the same name."""
