"""Simulated Azure: its resource IDs, names, outputs and data sources, and the requests that it refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from components.catalog import machines
from offline.boot.description import (
    MAC,
    NOTICE,
    SERVICES,
    Card,
    CloudDisk,
    CloudMachine,
    Export,
    InfiniBand,
    gpus_of,
    nfs_server,
)
from offline.boot.firewall import Firewall, azure
from offline.boot.machine import disk_file, hypervisor, is_wanted
from offline.cloud.cloud import AddressRequest, Cloud, catalog
from offline.cloud.faults import EVICTED, is_announced, notice, started
from offline.cloud.outputs import host_key, private_address, public_address, stable_uuid
from offline.cloud.rules import Rules, fill_path
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import Record, World, base_folder
from offline.protocol import ResourceError
from offline.values import Properties, Value, objects

SUBSCRIPTION = "00000000-0000-0000-0000-00000offline"
"""This is not a valid subscription ID, because its last letters are not hexadecimal."""
_GROUPS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups"
_EVERYWHERE = "global"
"""The location of resources that have no region, for example private DNS zones."""
_OS_DISK = "_OsDisk_"
"""Azure puts this text into the name of each OS disk."""
_BAKE = "trainyard-bake"
"""The run command that waits until a bake has finished."""
_INTERFACE = "azure-native:network:NetworkInterface"
_VIRTUAL_MACHINE = "azure-native:compute:VirtualMachine"
_VOLUME = "azure-native:netapp:CapacityPoolVolume"
_SHARE = "azure-native:storage:FileShare"
_RATES = {
    "infiniband-edr": "100 Gb/sec (4X EDR)",
    "infiniband-hdr": "200 Gb/sec (4X HDR)",
    "infiniband-ndr": "400 Gb/sec (4X NDR)",
}
"""Mapping from fabric to the rate of a port, as Linux prints it."""
_RUN_COMMAND = "azure-native:compute:VirtualMachineRunCommandByVirtualMachine"


class Azure(Cloud):
    package = "azure-native"
    reserved_addresses = (4, 1)
    filters = frozenset({_VIRTUAL_MACHINE, "azure-native:network:NetworkSecurityGroup", "azure-native:network:Subnet"})

    def __init__(self) -> None:
        self.sdk = Sdk("pulumi_azure_native")
        self.rules = Rules(self.package)
        self.functions = {
            "azure-native:compute:getVirtualMachine": _machine,
            "azure-native:compute:getVirtualMachineRunCommandByVirtualMachine": _run_command,
        }
        self._location = ""

    def configure(self, config: Properties) -> None:
        self._location = str(config.get("location") or "")

    def name_property(self, described: Described) -> str:
        kind = described.token.rpartition(":")[2]
        guess = f"{kind[0].lower()}{kind[1:]}Name"
        return self.rules.of(described.token).own_name or (guess if guess in described.inputs else "")

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        name = f"{logical}{suffix}"
        plain = self.rules.of(described.token).plain_name
        return "".join(filter(str.isalnum, name.lower()))[-24:] if plain else name

    def identity(self, described: Described, inputs: Properties) -> str:
        values = {name: str(value) for name, value in inputs.items()}
        path = fill_path(self._path(described), values)
        if self.rules.of(described.token).holds_all:
            return f"{_GROUPS}/{path}"
        return f"{_GROUPS}/{values.get('resourceGroupName', 'offline')}/providers/{path}"

    def given(self, described: Described, inputs: Properties) -> Properties:
        known: Properties = {}
        if "location" in described.outputs and "location" not in inputs:
            known["location"] = self._location or "offline"
        name = inputs.get(self.name_property(described))
        if "name" in described.outputs and name is not None:
            known["name"] = name
        if "type" in described.outputs:
            known["type"] = self._arm_type(described)
        return known

    def computed(self, described: Described, identity: str, outputs: Properties) -> Properties:
        match described.token.rpartition(":")[2]:
            case "PublicIPAddress":
                own: Properties = {"ipAddress": public_address(identity)}
            case "NetworkInterface":
                own = {"ipConfigurations": _addressed(identity, outputs.get("ipConfigurations"))}
            case "CapacityPoolVolume":
                uuids = {"fileSystemId": stable_uuid(identity), "mountTargetId": stable_uuid(f"{identity}/mount")}
                own = {"mountTargets": [{**uuids, "ipAddress": private_address(identity)}]}
            case "VirtualNetwork":
                place, subnets = f"{identity}/subnets", objects(outputs.get("subnets"))
                own = {"subnets": [{"id": f"{place}/{one.get('name', 'offline')}", **one} for one in subnets]}
            case "VirtualMachine" if is_wanted() and "timeCreated" not in outputs:
                # `up` waits for the host key of a new machine.
                own = {"timeCreated": datetime.now(UTC).isoformat(timespec="seconds")}
            case _:
                own = {"instanceView": _view("")} if described.token == _RUN_COMMAND else {}
        return {**outputs, **own}

    def machine(self, record: Record, world: World) -> CloudMachine | None:
        if record.token == _RUN_COMMAND:
            # The machine's agent runs the command.
            owner = world.find(record.id.partition("/runCommands/")[0])
            return self.machine(owner, world) if owner else None
        if record.token == _VOLUME:
            return _netapp(record)
        if record.token == _SHARE:
            return _azure_files(record, world)
        if record.token != _VIRTUAL_MACHINE:
            return None
        facts: Any = record.outputs
        card = _first_card(record, world)
        config: Any = objects(card.outputs.get("ipConfigurations"))[0]
        subnet = str((config.get("subnet") or {}).get("id"))
        network = world.find(subnet) or world.find(subnet.rpartition("/subnets/")[0])
        ranges = self.ranges(network.inputs) if network else ()
        private = str(config["privateIPAddress"])
        address = IPv4Interface(f"{private}/{str(ranges[0] if ranges else '/24').partition('/')[2]}")
        firewall = _firewall(network, address.ip, world) if network else None
        found = world.find(str((config.get("publicIPAddress") or {}).get("id")))
        profile = facts.get("osProfile") or {}
        size = str((facts.get("hardwareProfile") or {}).get("vmSize"))
        kind = machines("azure").get(size)
        commands = [one for one in world.records() if one.token == _RUN_COMMAND and one.id.startswith(f"{record.id}/")]
        return CloudMachine(
            resource=record.id,
            name=_name(record),
            cloud="azure",
            # cloud-init compares the firmware's UUID with the ID in the metadata.
            firmware=["type=3,asset=7783-7084-3265-9085-8269-3286-77", f"type=1,uuid={_vm_id(record)}"],
            metadata={
                "imds": _imds(record, size, private, str(ranges[0] if ranges else "10.0.0.0/24")),
                "commands": [_command(one) for one in sorted(commands, key=lambda one: one.id)],
            },
            cards=[Card(address=address, firewall=firewall)],
            public=str(found.outputs["ipAddress"]) if found else "",
            disks=[
                CloudDisk(
                    path=disk_file(world.folder, str(disk["managedDisk"]["id"])),
                    serial=f"lun{int(disk['lun'])}",
                    gib=16,
                )
                for disk in (facts.get("storageProfile") or {}).get("dataDisks") or ()
            ],
            cd={"ovf-env.xml": _ovf_environment(profile)},
            contract=_CONTRACT,
            first_boot=[*_FIRST_BOOT, *_names(world)],
            gpus=replace(gpus, nvswitch=True) if kind and (gpus := gpus_of(kind)) else None,
            infiniband=InfiniBand(count=kind.rdma, rate=_RATES[kind.fabric], partition=_partition(record))
            if kind and kind.fabric in _RATES
            else None,
            runs=not facts.get(EVICTED),
            notice=notice(facts, NOTICE if _is_spot(facts) else 0),
        )

    def refers(self, text: str) -> str:
        # An OS disk is not a resource of the stack, because Azure creates it with its machine.
        if _OS_DISK in text:
            return ""
        return text if text.lower().startswith(f"/subscriptions/{SUBSCRIPTION}/".lower()) else ""

    def refused_change(self, path: str) -> str:
        return (
            f"Code=PropertyChangeNotAllowed Message=Changing property '{path}' is not allowed. Fix: ignore the change "
            f"(ignore_changes), or have the resource replaced (replace_on_changes with delete_before_replace)"
        )

    def refused_location(self, inputs: Properties) -> str:
        location = str(inputs.get("location") or _EVERYWHERE)
        regions = catalog("azure_regions.yaml", "regions")
        name = location.replace(" ", "").lower()
        if name == _EVERYWHERE or name in (*regions["with_zones"], *regions["without_zones"]):
            return ""
        return (
            f"Code=LocationNotAvailableForResourceType Message=The provided location '{location}' is not available. "
            "Fix: use a region that `az account list-locations` prints"
        )

    def refused_now(self, record: Record, world: World) -> str:
        return _run_command_refusal(record.id, world) if record.token == _RUN_COMMAND else ""

    def requested_addresses(self, token: str, inputs: Properties) -> Iterator[AddressRequest]:
        for item in objects(inputs.get("ipConfigurations")) if token == _INTERFACE else ():
            subnet, address = item.get("subnet"), item.get("privateIPAddress")
            if isinstance(subnet, dict) and isinstance(subnet.get("id"), str) and isinstance(address, str):
                yield AddressRequest(str(subnet["id"]), address)

    def ranges(self, inputs: Properties) -> Sequence[str]:
        several = inputs.get("addressPrefixes")
        found = several if isinstance(several, list) else [inputs.get("addressPrefix")]
        return [item for item in found if isinstance(item, str)]

    def _path(self, described: Described) -> str:
        """Return a type's ID pattern. If the type has no rules, guess it from the names of the type and its inputs."""
        if known := self.rules.of(described.token).path:
            return known
        _, module, kind = described.token.split(":")
        names = [name for name, found in described.inputs.items() if found.required and name.endswith("Name")]
        parents = [f"{name.removesuffix('Name')}s/{{{name}}}" for name in names if name != "resourceGroupName"]
        own = f"{kind[0].lower()}{kind[1:]}s/{{{self.name_property(described) or 'name'}}}"
        return "/".join([f"Microsoft.{module.capitalize()}", *parents, own])

    def _arm_type(self, described: Described) -> str:
        if self.rules.of(described.token).holds_all:
            return "Microsoft.Resources/resourceGroups"
        namespace, *pieces = self._path(described).split("/")
        return "/".join([namespace, *pieces[::2]])


def _firewall(subnet: Record, address: IPv4Address, world: World) -> Firewall | None:
    """Return the rules of the subnet's security group for a machine, or None without a group."""
    facts: Any = subnet.inputs
    group = world.find(str((facts.get("networkSecurityGroup") or {}).get("id")))
    if group is None:
        return None
    network = world.find(subnet.id.rpartition("/subnets/")[0])
    space: Any = (network.inputs.get("addressSpace") if network else None) or {}
    rules: Any = group.inputs.get("securityRules") or ()
    # The storage services' addresses in the virtual network are simulated outside of its address space.
    return azure(rules, [*(space.get("addressPrefixes") or ()), SERVICES], address)


def _partition(record: Record) -> str:
    """Return the partition key of a machine. The machines of a scale set or an availability set share one partition.

    The key begins with 0x8, as in Azure/ai-infrastructure-on-azure at a01b0731 (see the stage 90-health).
    """
    places = [record.outputs.get(name) for name in ("virtualMachineScaleSet", "availabilitySet")]
    shared = next((str(place["id"]).lower() for place in places if isinstance(place, dict)), record.id)
    return f"{0x8001 + int.from_bytes(hashlib.sha256(shared.encode()).digest()[:2]) % 0xFFE:#06x}"


def _netapp(record: Record) -> CloudMachine:
    facts: Any = record.outputs
    rules = (facts.get("exportPolicy") or {}).get("rules") or ()
    exports = [Export(ranges=[rule["allowedClients"]], squash=not rule.get("hasRootAccess")) for rule in rules]
    path = f"/{facts['creationToken']}"
    return nfs_server(record.id, f"netapp-{_name(record)}", facts["mountTargets"][0]["ipAddress"], path, exports)


def _azure_files(record: Record, world: World) -> CloudMachine:
    """Return the server of a file share.

    Only subnets in the account's rules with the service endpoint have access. By default, an account requires
    encryption, which plain NFS does not have (a summary of Microsoft's "Azure Files networking considerations" on
    techwithtyler.dev, read 2026-11-28).
    """
    account: Any = _account(record, world).inputs
    rules = (account.get("networkRuleSet") or {}).get("virtualNetworkRules") or ()
    ranges: list[str] = []
    for rule in () if account.get("enableHttpsTrafficOnly", True) else rules:
        subnet: Any = _found(world, str(rule["virtualNetworkResourceId"])).inputs
        if any(endpoint["service"] == "Microsoft.Storage" for endpoint in subnet.get("serviceEndpoints") or ()):
            ranges += Azure().ranges(subnet)
    exports = [Export(ranges=ranges, squash=record.inputs.get("rootSquash") != "NoRootSquash")] if ranges else []
    path = f"/{_name(_account(record, world))}/{_name(record)}"
    return nfs_server(record.id, f"files-{_name(record)}", private_address(record.id), path, exports)


def _account(share: Record, world: World) -> Record:
    return _found(world, share.id.partition("/fileServices/")[0])


def _name(record: Record) -> str:
    return record.id.rpartition("/")[2]


def _names(world: World) -> Iterator[str]:
    """Yield commands that resolve the accounts' names, because booted machines use this computer's DNS server."""
    for share in (record for record in world.records() if record.token == _SHARE):
        host = f"{_name(_account(share, world))}.file.core.windows.net"
        yield f"echo '{private_address(share.id)} {host}' >>/etc/hosts"


_CONTRACT = "azure-ubuntu-24.04-hpc"
_FIRST_BOOT = (
    "printf 'datasource_list: [Azure]\\n' >/etc/cloud/cloud.cfg.d/99-offline.cfg",
    # The image contains the agents of both clouds. Google's waits for Google's metadata server.
    "systemctl --quiet mask google-startup-scripts.service google-shutdown-scripts.service",
    "systemctl stop --no-block google-startup-scripts.service",
    # Debian's unit starts only on Hyper-V.
    "mkdir -p /etc/systemd/system/walinuxagent.service.d",
    "printf '[Unit]\\nConditionVirtualization=\\n' >/etc/systemd/system/walinuxagent.service.d/offline.conf",
    "systemctl daemon-reload",
    "systemctl --quiet enable walinuxagent.service",
    "systemctl start --no-block walinuxagent.service",
)


def _first_card(record: Record, world: World) -> Record:
    profile: Any = record.outputs.get("networkProfile") or {}
    return _found(world, str(profile["networkInterfaces"][0]["id"]))


def _vm_id(record: Record) -> str:
    return str(record.outputs.get("vmId") or stable_uuid(record.id))


def _command(record: Record) -> Mapping[str, Any]:
    """Return a run command's name, script and timeout in seconds."""
    source: Any = record.inputs.get("source") or {}
    seconds = float(str(record.inputs.get("timeoutInSeconds") or 3600))
    return {"name": _name(record), "script": str(source.get("script")), "seconds": seconds}


def _imds(record: Record, size: str, private: str, cidr: str) -> Mapping[str, Any]:
    """Return what the Instance Metadata Service returns. Source: Microsoft, "Azure Instance Metadata Service"."""
    facts: Any = record.outputs
    kind = "Redeploy" if is_announced(facts) else "Preempt" if facts.get(EVICTED) and _is_spot(facts) else ""
    event = {"EventType": kind, "EventStatus": "Scheduled", "ResourceType": "VirtualMachine", "NotBefore": ""}
    events = [event | {"Resources": [_name(record)]}] if kind else []
    profile = facts.get("osProfile") or {}
    linux = profile.get("linuxConfiguration") or {}
    image = (facts.get("storageProfile") or {}).get("imageReference") or {}
    keys = [
        {"keyData": key.get("keyData"), "path": key.get("path")}
        for key in (linux.get("ssh") or {}).get("publicKeys") or ()
    ]
    address, _, prefix = cidr.partition("/")
    card = {
        "ipv4": {
            "ipAddress": [{"privateIpAddress": private, "publicIpAddress": ""}],
            "subnet": [{"address": address, "prefix": prefix}],
        },
        "ipv6": {"ipAddress": []},
        "macAddress": MAC,
    }
    return {
        "instance": {
            "compute": {
                "azEnvironment": "AzurePublicCloud",
                "customData": "",
                "location": str(facts.get("location")),
                "name": str(profile.get("computerName")),
                "offer": str(image.get("offer") or ""),
                "osProfile": {
                    "adminUsername": str(profile.get("adminUsername")),
                    "computerName": str(profile.get("computerName")),
                    "disablePasswordAuthentication": "true",
                },
                "osType": "Linux",
                "priority": str(facts.get("priority") or "Regular"),
                "provider": "Microsoft.Compute",
                "publicKeys": keys,
                "publisher": str(image.get("publisher") or ""),
                "resourceGroupName": record.id.split("/")[4],
                "sku": str(image.get("sku") or ""),
                "subscriptionId": SUBSCRIPTION,
                "tagsList": [],
                "userData": "",
                "version": str(image.get("version") or ""),
                "vmId": _vm_id(record),
                "vmSize": size,
            },
            "network": {"interface": [card]},
        },
        "scheduledevents": {"DocumentIncarnation": 1, "Events": events},
    }


def _is_spot(facts: Properties) -> bool:
    return facts.get("priority") == "Spot"


def _ovf_environment(profile: Any) -> str:
    """Return ovf-env.xml, which Azure puts on a CD. Source: the parser in cloud-init 25.1.4, helpers/azure.py."""
    name, user = str(profile.get("computerName")), str(profile.get("adminUsername"))
    return (
        '<?xml version="1.0" encoding="utf-8"?>'
        '<ns0:Environment xmlns:ns0="http://schemas.dmtf.org/ovf/environment/1" '
        'xmlns:ns1="http://schemas.microsoft.com/windowsazure" '
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">'
        "<ns1:ProvisioningSection><ns1:Version>1.0</ns1:Version>"
        "<ns1:LinuxProvisioningConfigurationSet>"
        "<ns1:ConfigurationSetType>LinuxProvisioningConfiguration</ns1:ConfigurationSetType>"
        f"<ns1:UserName>{user}</ns1:UserName>"
        "<ns1:DisableSshPasswordAuthentication>true</ns1:DisableSshPasswordAuthentication>"
        f"<ns1:HostName>{name}</ns1:HostName>"
        f"<ns1:CustomData>{profile.get('customData') or ''}</ns1:CustomData>"
        "</ns1:LinuxProvisioningConfigurationSet></ns1:ProvisioningSection>"
        "<ns1:PlatformSettingsSection><ns1:Version>1.0</ns1:Version><ns1:PlatformSettings>"
        "<ns1:KmsServerHostname>kms.core.windows.net</ns1:KmsServerHostname>"
        "<ns1:ProvisionGuestAgent>true</ns1:ProvisionGuestAgent>"
        '<ns1:GuestAgentPackageName xsi:nil="true"/><ns1:PreprovisionedVm>false</ns1:PreprovisionedVm>'
        "</ns1:PlatformSettings></ns1:PlatformSettingsSection></ns0:Environment>"
    )


def _addressed(identity: str, configurations: Value) -> Value:
    return [
        {"privateIPAddress": private_address(f"{identity}/{index}"), "primary": index == 0, **item}
        for index, item in enumerate(objects(configurations))
    ]


def _view(output: str) -> Properties:
    return {
        "executionState": "Succeeded",
        "exitCode": 0,
        "output": output,
        "error": "",
        "executionMessage": "offline: no command ran",
    }


def _found(world: World, identity: str) -> Record:
    found = world.find(identity)
    if found is None:
        raise ResourceError(f"404 ResourceNotFound: {identity} was not found")
    return found


def _run_command(world: World, arguments: Properties) -> Properties:
    """Return a run command. Raises ResourceError if it does not exist.

    Its output is in instanceView. Azure returns this property only while the machine is allocated, and only for
    $expand=instanceView (REST API, "Virtual Machine Run Commands - Get By Virtual Machine").
    """
    group, machine, name = (str(arguments.get(key)) for key in ("resourceGroupName", "vmName", "runCommandName"))
    owner = f"{_GROUPS}/{group}/providers/Microsoft.Compute/virtualMachines/{machine}"
    found = _found(world, f"{owner}/runCommands/{name}")
    answer: Properties = {"id": found.id, **found.outputs, "instanceView": None}
    if arguments.get("expand") == "instanceView" and is_wanted():
        if reported := hypervisor(world.folder).command(machine, name):
            state = "Succeeded" if reported[0] == "success" else "Failed"
            answer["instanceView"] = {"executionState": state, "output": reported[1], "error": ""}
        return answer
    if arguments.get("expand") == "instanceView" and not _run_command_refusal(found.id, world):
        asks_for_key = "ssh_host" in str(found.inputs.get("source"))
        answer["instanceView"] = _view(f"{host_key(world.seed(owner))}\n" if asks_for_key else "offline\n")
    return answer


def _machine(world: World, arguments: Properties) -> Properties:
    """Return a machine with its power state. Raises ResourceError if it does not exist.

    A machine that bakes an image has stopped when it is read again. Other machines are still running. The codes are
    from Microsoft's "States and billing status of Azure Virtual Machines" (read 2026-11-22).
    """
    group, name = str(arguments.get("resourceGroupName")), str(arguments.get("vmName"))
    found = _found(world, f"{_GROUPS}/{group}/providers/Microsoft.Compute/virtualMachines/{name}")
    bakes = world.find(f"{found.id}/runCommands/{_BAKE}") is not None
    stopped = bakes and world.count(f"power of {world.seed(found.id)}") > 1
    disk: Value = {"id": f"{_GROUPS}/{group}/providers/Microsoft.Compute/disks/{name}{_OS_DISK}{stable_uuid(found.id)}"}
    profile: Value = {"osDisk": {"managedDisk": disk}}
    view: Value = {"statuses": [{"code": "PowerState/stopped" if stopped else "PowerState/running"}]}
    return {"id": found.id, **found.outputs, "storageProfile": profile, "instanceView": view}


def start_machine(identity: str) -> str:
    """Start a deallocated machine in any stack, as `az vm start` does. Return an error message, or "" if it runs."""
    for folder in base_folder().iterdir():
        world = World(folder.name)
        record = world.find(identity)
        if record is None:
            continue
        world.put(started(record))
        if is_wanted() and (machine := Azure().machine(started(record), world)):
            hypervisor(world.folder).apply(machine)
        return ""
    return f"Code=ResourceNotFound Message=The Resource '{identity}' was not found."


def _run_command_refusal(identity: str, world: World) -> str:
    """Return Azure's error message if the run command's machine is deallocated, or "" otherwise.

    hashicorp/terraform-provider-azurerm issues 477 and 6098 quote the message for extensions (read 2026-11-22). The
    message applies to run commands too, because an extension executes them.
    """
    machine = world.find(identity.partition("/runCommands/")[0])
    if machine is None or not machine.outputs.get(EVICTED):
        return ""
    return "Code=OperationNotAllowed Message=Cannot modify extensions in the VM when the VM is not running."
