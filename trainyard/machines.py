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
"""Mapping from a machine's resource type to the input with the host's name. Existing hosts are not resources."""

BAKE = "trainyard:bake"
"""Configuration key that `yard bake` sets to build or keep an image instead of creating a cluster."""
BUILD, KEEP = "build", "keep"
BAKED_IMAGE = "baked_image"
"""Both a key in the stack file and an output of stacks that bake an image."""

END_JOBS = "trainyard:end_jobs"
"""Configuration key for the comma-separated IDs of the running jobs that `pulumi up` is allowed to end."""
ALERT_WEBHOOK = "trainyard:alert_webhook"
"""Configuration key for the URL that receives alerts. It can be a secret (`pulumi config set --secret`)."""
ACCEPT = "trainyard:accept_host_keys"
"""Configuration key for the comma-separated fingerprints of SSH host keys that are allowed to replace a recorded key.
`pulumi up --config` also writes END_JOBS and ACCEPT to the stack file. The saved keys permit nothing more, because they
list specific jobs and fingerprints."""
