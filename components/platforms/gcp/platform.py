"""GcpPlatform: a plan's machines in Google's Compute Engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pulumi
import pulumi_gcp
from pulumi_gcp import serviceaccount

from components.cloud_init import ADMIN_USER, SharedFiles
from components.plan import HostPlan, Role
from components.platforms.base import Host, Platform, PlatformArgs, Tunnel
from components.platforms.gcp.families import family_of
from components.platforms.gcp.hostkeys import host_key
from components.platforms.gcp.instance import DATA_DISK, DiskArgs, MachineArgs, machine
from components.platforms.gcp.layout import layout
from components.platforms.gcp.network import IAP_RANGE, Networks, NetworksArgs
from components.platforms.gcp.procurement import Wish, procurement
from components.platforms.gcp.sdk import narrow_import
from components.platforms.gcp.spec import Spec
from components.platforms.gcp.storage import NFS, SHARE, DataDiskArgs, FilestoreArgs, data_disk, filestore_instance
from components.platforms.gcp.tunnel import PROGRAM, tunnel_command
from components.platforms.lean import keeping
from components.spec import ClusterSpec

with narrow_import():
    from pulumi_gcp.compute._inputs import ResourcePolicyGroupPlacementPolicyArgs
    from pulumi_gcp.compute.address import Address
    from pulumi_gcp.compute.instance import Instance
    from pulumi_gcp.compute.resource_policy import ResourcePolicy

_READ = {"gcp:compute/instance:Instance": ("name", "zone", "instance_id", "creation_timestamp")}
"""Outputs in use of the resource type of which every node has one."""


class GcpPlatform(Platform):
    """Networks, a way out, one machine per host, and what the stack shares."""

    user_data_limit: ClassVar[int] = 256 * 1024
    """Bytes of one metadata value."""
    largest_disk_gib: ClassVar[int | None] = 65536
    """Persistent Disk (Google, "About Persistent Disk")."""
    shared_disk: ClassVar[bool] = True
    billed: ClassVar[Mapping[str, str]] = {
        "gcp:compute/instance:Instance": "machine",
        "gcp:compute/disk:Disk": "disk",
        "gcp:filestore/instance:Instance": "Filestore",
        "gcp:compute/routerNat:RouterNat": "Cloud NAT",
        "gcp:compute/address:Address": "reserved address",
    }
    storage_types: ClassVar[frozenset[str]] = frozenset({"gcp:compute/disk:Disk", "gcp:filestore/instance:Instance"})

    @staticmethod
    def tunnel(cluster: ClusterSpec) -> Tunnel | None:
        """Return Identity-Aware Proxy's tunnel, if the head has no public address."""
        if cluster.access.via != "bastion" or not isinstance(cluster.platform, Spec):
            return None
        return Tunnel(program=PROGRAM, port=cluster.platform.iap_port, option="cluster.platform.iap_port")

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        if not isinstance(args.spec, Spec):
            raise TypeError(f"the GCP platform cannot take a {type(args.spec).__name__}")
        self._spec, self._plan, self._args = args.spec, args.plan, args
        # A provider of the stack's own: no machine lands in whatever project a shell happens to be set to.
        provider = pulumi_gcp.Provider(
            f"{name}-provider",
            project=args.spec.project,
            region=args.spec.region,
            zone=args.spec.zone,
            default_labels={"trainyard-cluster": args.plan.name},
            opts=pulumi.ResourceOptions(parent=opts.parent if opts else None),
        )
        own = pulumi.ResourceOptions(providers=[provider], transformations=[keeping(_READ)])
        super().__init__(name, args, pulumi.ResourceOptions.merge(opts, own))
        self._layout = layout(args.plan, args.spec.fabric_cidr, args.spec.zone)
        self._networks = self._make_networks()
        self._account = self._make_account()
        self._policies = self._make_policies()
        self._public = self._make_public_address()
        self._data_disk: pulumi.Output[str] | None = None
        self._user_data = args.user_data(self._make_shared_storage())
        self.hosts = (self._host(host, self._machine(host)) for host in args.plan.hosts)
        self.register_outputs({})

    def _make_networks(self) -> Networks:
        access = self._args.cluster.access
        args = NetworksArgs(
            layout=self._layout,
            project=self._spec.project,
            region=self._spec.region,
            ssh_from=(IAP_RANGE,) if access.via == "bastion" else access.allow_ssh_from,
        )
        return Networks(f"{self._plan.name}-networks", args, self._child())

    def _make_account(self) -> pulumi.Output[str]:
        """An account without a single role: machines need none, and the project's default one may edit everything."""
        account = serviceaccount.Account(
            f"{self._plan.name}-nodes",
            account_id=f"{self._plan.name}-nodes",
            display_name=f"Machines of the Trainyard cluster {self._plan.name}",
            opts=self._child(),
        )
        return account.email

    def _make_policies(self) -> dict[str, pulumi.Output[str]]:
        """One policy for each compact group: sharing one would pack unrelated machines together."""
        compact = ResourcePolicyGroupPlacementPolicyArgs(collocation="COLLOCATED")
        return {
            group: ResourcePolicy(
                f"{self._plan.name}-{group}-compact",
                name=f"{self._plan.name}-{group}-compact",
                region=self._spec.region,
                group_placement_policy=compact,
                opts=self._child(),
            ).self_link
            for group in self._plan.groups
            if self._is_compact(group)
        }

    def _make_public_address(self) -> pulumi.Output[str] | None:
        if self._args.cluster.access.via != "public":
            return None
        address = Address(
            f"{self._plan.head.name}-address",
            name=f"{self._plan.head.name}-address",
            region=self._spec.region,
            opts=self._child(),
        )
        return address.address

    def _make_shared_storage(self) -> pulumi.Input[SharedFiles]:
        """Declare what the stack shares, and say where hosts find it."""
        shared = self._args.cluster.storage.shared
        name = f"{self._plan.name}-shared"
        if shared.kind == "external":
            return SharedFiles(source=f"{shared.address}:{shared.path}", nfs="4.1")
        if shared.kind == "head_nfs":
            disk = DataDiskArgs(
                name=name, zone=self._spec.zone, size_gib=shared.size_gib, protect=self._spec.protect_storage
            )
            self._data_disk = data_disk(disk, self).self_link
            return SharedFiles(disk=f"/dev/disk/by-id/google-{DATA_DISK}")
        wanted = FilestoreArgs(
            name=name,
            tier=self._spec.filestore.tier,
            zone=self._spec.filestore.zone or self._spec.zone,
            size_gib=shared.size_gib,
            network=self._networks.primary,
            head=self._plan.head.private_ip,
            cidr=self._plan.network,
            protect=self._spec.protect_storage,
        )
        made = filestore_instance(wanted, self)
        # In a preview `networks` holds the inputs, without an address; `id` is unknown until the address is known.
        addresses = made.networks.apply(lambda networks: networks[0].ip_addresses)
        server = pulumi.Output.all(made.id, addresses).apply(lambda known: str(known[1][0]))
        self._networks.allow_callbacks(f"{name}-callbacks", server)
        return server.apply(lambda address: SharedFiles(source=f"{address}:/{SHARE}", nfs=NFS))

    def _machine(self, host: HostPlan) -> Instance:
        is_head = host.role is Role.HEAD
        family = family_of(host.machine.name)
        disk = DiskArgs(
            image=self._spec.custom_image or str(self._plan.image.reference),
            type=self._spec.boot_disk_type or family.boot_disks[0],
            size_gib=self._spec.boot_disk_gib,
        )
        starts_at = family.tier_1_from_vcpus
        args = MachineArgs(
            name=host.name,
            machine_type=host.machine.name,
            zone=self._spec.zone,
            is_head=is_head,
            disk=disk,
            cards=self._layout.cards(host),
            subnets=self._networks.subnets,
            procurement=procurement(family, host.machine.gpus, self._wish(host)),
            tier_1=self._spec.tier_1 and starts_at is not None and host.machine.vcpus >= starts_at,
            user_data=self._user_data.apply(lambda render: render(host)),
            service_account=self._account,
            public_ip=self._public if is_head else None,
            placement_policy=self._policies.get(host.group or ""),
            data_disk=self._data_disk if is_head else None,
        )
        # Packages come through the way out from the first minute on, and nothing in the machine's inputs says so.
        return machine(args, pulumi.ResourceOptions(parent=self, depends_on=[self._networks.exit]))

    def _wish(self, host: HostPlan) -> Wish:
        if host.group is None:
            return Wish(kind="on_demand")
        group = self._args.cluster.nodes[host.group]
        return Wish(
            kind=group.capacity.kind,
            reservation=group.capacity.reservation,
            compact=self._is_compact(host.group),
        )

    def _is_compact(self, group: str) -> bool:
        return self._args.cluster.nodes[group].placement == "compact"

    def _host(self, host: HostPlan, made: Instance) -> Host:
        address, port = self._reached(host)
        tunnelled = host.role is Role.HEAD and self._args.cluster.access.via == "bastion"
        return Host(
            plan=host,
            address=address,
            port=port,
            tunnel=tunnel_command(made.name, self._spec.zone, self._spec.project) if tunnelled else None,
            user=ADMIN_USER,
            host_key=host_key(made, self._spec.project),
            machine_id=made.instance_id,
            through_head=host.role is not Role.HEAD,
        )

    def _reached(self, host: HostPlan) -> tuple[pulumi.Input[str], int]:
        if host.role is Role.HEAD and self._public is not None:
            return self._public, 22
        if host.role is Role.HEAD and self._args.cluster.access.via == "bastion":
            return "127.0.0.1", self._spec.iap_port
        return str(host.private_ip), 22

    def _child(self) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self)
