"""Facts about machines that the Pulumi program and yard share."""

from __future__ import annotations

MACHINE_TYPES = frozenset(
    {
        "azure-native:compute:VirtualMachine",
        "gcp:compute/instance:Instance",
        "pulumi-python:dynamic/local:Vm",
    }
)
"""Resource types of machines. The name of a machine is that of its host, on the local platform after a prefix. Existing
hosts are not resources in the stack."""

ROLL = "TRAINYARD_ROLL"
"""Environment variable: comma-separated names of nodes whose machines `pulumi up` creates with new user-data."""
