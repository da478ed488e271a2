"""The permissions with which the head of a cloud cluster starts and stops the machines of elastic groups.

Each test evaluates the declared roles and bindings as the cloud documents them. No cloud has evaluated them.
"""

from __future__ import annotations

import pytest

from tests.components.platforms.recording import Build, Built

SLURM = {"scheduler": "slurm", "containers": "none"}
INSTANCE = "compute/instance:Instance"


def azure_allows(built: Built, action: str, scope: str) -> bool:
    """Return whether the head's identity may do `action` on `scope` (Microsoft, "What is Azure RBAC", 2026-11-26)."""
    roles = {f"id-{name}": role for name, role in built.all("authorization:RoleDefinition").items()}
    [identity] = built.all("managedidentity:UserAssignedIdentity")
    for assignment in built.all("authorization:RoleAssignment").values():
        assert assignment["principalId"] == f"principal-of-{identity}"
        actions = [name for group in roles[assignment["roleDefinitionId"]]["permissions"] for name in group["actions"]]
        assert not any("*" in name for name in actions), "the comparison below knows no wildcards"
        if action in actions and f"{scope}/".startswith(f"{assignment['scope']}/"):
            return True
    return False


def gcp_allows(built: Built, permission: str, machine: str) -> bool:
    """Return whether the head's account has a permission on a machine (Google, "IAM overview", read 2026-11-26)."""
    head = built.one(INSTANCE, f"{built.plan.name}-head")["serviceAccount"]["email"]
    custom = {f"name-of-{name}": role for name, role in built.all("projects/iAMCustomRole:IAMCustomRole").items()}
    bindings = [
        *built.all("projects/iAMMember:IAMMember").values(),
        *(
            binding
            for binding in built.all("compute/instanceIAMMember:InstanceIAMMember").values()
            if binding["instanceName"] == machine
        ),
    ]
    mine = [binding["role"] for binding in bindings if binding["member"] == f"serviceAccount:{head}"]
    return any(permission in custom[role]["permissions"] for role in mine)


@pytest.mark.parametrize(
    ("action", "group", "allowed"),
    [
        ("read", "own", True),
        ("instanceView/read", "own", True),
        ("start/action", "own", True),
        ("deallocate/action", "own", True),
        ("write", "own", False),
        ("delete", "own", False),
        ("runCommand/action", "own", False),
        ("start/action", "other", False),
        ("deallocate/action", "own-2", False),
    ],
)
def test_the_head_on_azure_only_starts_and_stops_machines_of_its_group(
    build: Build, action: str, group: str, allowed: bool
) -> None:
    built = build("azure-a100", nodes__gpu__elastic={"min": 0, "idle_minutes": 20})
    own = built.only("resources:ResourceGroup")["resourceGroupName"]
    name = group.replace("own", own)
    scope = f"/subscriptions/s/resourceGroups/{name}/providers/Microsoft.Compute/virtualMachines/any"
    assert azure_allows(built, f"Microsoft.Compute/virtualMachines/{action}", scope) is allowed


def test_only_the_head_on_azure_has_the_identity(build: Build) -> None:
    built = build("azure-a100", nodes__gpu__elastic={"min": 0, "idle_minutes": 20})
    machines = built.all("compute:VirtualMachine")
    with_identity = [name for name, inputs in machines.items() if "identity" in inputs]
    assert with_identity == [f"{built.plan.name}-head"]
    assert "identity" not in str(build("azure-a100").all("compute:VirtualMachine"))


@pytest.mark.parametrize(
    ("permission", "machine", "allowed"),
    [
        ("compute.instances.get", "worker", True),
        ("compute.instances.start", "worker", True),
        ("compute.instances.stop", "worker", True),
        ("compute.zoneOperations.get", "any", True),
        ("compute.instances.create", "worker", False),
        ("compute.instances.delete", "worker", False),
        ("compute.instances.setMetadata", "worker", False),
        ("compute.instances.start", "fixed", False),
        ("compute.instances.stop", "head", False),
        ("compute.instances.stop", "foreign", False),
    ],
)
def test_the_head_on_google_cloud_only_starts_and_stops_elastic_machines(
    build: Build, permission: str, machine: str, allowed: bool
) -> None:
    fixed = {"machine": "a2-highgpu-1g", "count": 1}
    built = build("gcp-a2", nodes__gpu__elastic={"min": 0, "idle_minutes": 20}, nodes__fixed=fixed, limits={}, **SLURM)
    name = built.plan.name
    target = {"worker": f"{name}-gpu-1", "head": f"{name}-head", "fixed": f"{name}-fixed-0"}.get(machine, machine)
    assert gcp_allows(built, permission, target) is allowed


@pytest.mark.parametrize("stack", ["gcp-a2", "azure-a100"])
def test_the_head_of_a_cluster_that_sleeps_may_stop_itself(build: Build, stack: str) -> None:
    slurm = SLURM if stack == "gcp-a2" else {}
    built = build(stack, nodes__gpu__elastic={"min": 0, "idle_minutes": 20}, idle={"minutes": 60}, **slurm)
    head = f"{built.plan.name}-head"
    if stack == "azure-a100":
        group = built.only("resources:ResourceGroup")["resourceGroupName"]
        scope = f"/subscriptions/s/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachines/{head}"
        assert azure_allows(built, "Microsoft.Compute/virtualMachines/deallocate/action", scope)
        return
    assert gcp_allows(built, "compute.instances.stop", head)
    assert not gcp_allows(built, "compute.instances.delete", head)
    assert "desiredStatus" not in built.all(INSTANCE)[head]


def test_pulumi_leaves_the_state_of_elastic_machines_on_google_cloud(build: Build) -> None:
    fixed = {"machine": "a2-highgpu-1g", "count": 1}
    built = build("gcp-a2", nodes__gpu__elastic={"min": 0, "idle_minutes": 20}, nodes__fixed=fixed, limits={}, **SLURM)
    name, machines = built.plan.name, built.all(INSTANCE)
    assert "desiredStatus" not in machines[f"{name}-gpu-0"]
    assert machines[f"{name}-fixed-0"]["desiredStatus"] == machines[f"{name}-head"]["desiredStatus"] == "RUNNING"
    accounts = {machine: inputs["serviceAccount"]["email"] for machine, inputs in machines.items()}
    assert accounts.pop(f"{name}-head") not in accounts.values()
