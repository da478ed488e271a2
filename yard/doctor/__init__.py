"""`yard doctor`: runs probes on every host and prints problems that can break jobs, each with its cause and fix."""
