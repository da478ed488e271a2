"""The user's working tree: which files are sent with a job or by `yard sync`, and a record of its git state."""
