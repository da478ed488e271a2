"""The user's working tree: the directory that is sent with a job, and a record of its git state."""
