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
"""The input with the host's name, by the machine's resource type. Existing hosts are not resources in the stack."""

BAKE = "trainyard:bake"
"""Configuration key that `yard bake` sets to build or keep an image instead of creating a cluster."""
BUILD, KEEP = "build", "keep"
BAKED_IMAGE = "baked_image"
"""A key in the stack file, and an output of stacks that bake an image."""

END_JOBS = "trainyard:end_jobs"
"""Configuration key for the comma-separated IDs of running jobs that `pulumi up` may end."""
ACCEPT = "trainyard:accept_host_keys"
"""Configuration key for the comma-separated fingerprints of SSH host keys that may replace a machine's recorded key.

`pulumi up --config` also writes both keys to the stack file, where they have no further effect, because they name
exactly what they permit."""
