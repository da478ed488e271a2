"""The Pulumi program: creates the cluster that the stack file describes."""

from trainyard.program import run

run()
