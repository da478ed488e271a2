"""Resource types and names that both the Pulumi program and yard use."""

from __future__ import annotations

MACHINE_TYPES = frozenset(
    {
        "azure-native:compute:VirtualMachine",
        "gcp:compute/instance:Instance",
        "pulumi-python:dynamic/local:Vm",
    }
)
"""Resource types of machines. The resource has the name of its host. On the local platform, the name has a prefix.
Existing hosts are not resources in the stack."""

BAKE = "TRAINYARD_BAKE"
"""Environment variable: with BUILD or KEEP, the program builds or keeps an image instead of creating a cluster."""
BUILD, KEEP = "build", "keep"
SOURCE = "TRAINYARD_STACK_FILE"
"""Environment variable: name of the stack file, if it differs from the name of the stack."""
BAKED_IMAGE = "baked_image"
"""Name of a key in the stack file, and of an output of stacks that bake an image."""

ROLL = "TRAINYARD_ROLL"
"""Environment variable: comma-separated names of nodes whose machines `pulumi up` creates with new user-data."""
