"""Resource types, configuration keys and names that both the Pulumi program and yard use."""

from __future__ import annotations

from types import MappingProxyType

HOST_INPUTS = MappingProxyType(
    {
        "azure-native:compute:VirtualMachine": "vmName",
        "gcp:compute/instance:Instance": "name",
        "pulumi-python:dynamic/local:Vm": "host",
    }
)
"""For each resource type of machines, the input that contains the host's name. Existing hosts are not resources in the
stack."""

BAKE = "trainyard:bake"
"""Configuration key that `yard bake` sets. With BUILD or KEEP, the program builds or keeps an image instead of creating
a cluster."""
BUILD, KEEP = "build", "keep"
BAKED_IMAGE = "baked_image"
"""Name of a key in the stack file, and of an output of stacks that bake an image."""

END_JOBS = "trainyard:end_jobs"
"""Configuration key: comma-separated ids of the running jobs that `pulumi up` may end."""
ACCEPT = "trainyard:accept_host_keys"
"""Configuration key: comma-separated fingerprints of SSH host keys that may replace a machine's recorded key.

`pulumi up --config` also writes a key to the stack file. Both keys name exactly what they permit, so they have no
further effect there."""
