"""Resource types and names that both the Pulumi program and yard use."""

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

BAKE = "TRAINYARD_BAKE"
"""Environment variable: with BUILD or KEEP, the program builds or keeps an image instead of creating a cluster."""
BUILD, KEEP = "build", "keep"
SOURCE = "TRAINYARD_STACK_FILE"
"""Environment variable: name of the stack file, if it differs from the name of the stack."""
BAKED_IMAGE = "baked_image"
"""Name of a key in the stack file, and of an output of stacks that bake an image."""

ROLL = "TRAINYARD_ROLL"
"""Environment variable: comma-separated names of nodes whose machines `pulumi up` creates with new user-data."""
