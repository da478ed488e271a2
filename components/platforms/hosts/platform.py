"""HostsPlatform: machines that exist become a cluster's, over ssh, and go back as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pulumi
from pulumi_command import remote

from components.cloud_init import ADMIN_USER, AccessKeys
from components.plan import HostPlan, Role
from components.platforms.base import Host, Platform, PlatformArgs
from components.platforms.hosts.connect import Route, route
from components.platforms.hosts.scripts import (
    AS_ROOT,
    GIVE_BACK,
    SharedFolder,
    bring_up_script,
    lease_script,
    reach_script,
    survey_script,
)
from components.platforms.hosts.spec import Spec


class HostsPlatform(Platform):
    """Four commands for each host: a survey and a test of its connections, which change nothing, a lease that `delete`
    ends, and the bring-up."""

    user_data_limit: ClassVar[int] = 1 << 20
    """The script comes over ssh and takes any size; this is for the Pulumi state, which holds it once per host."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, args, opts)
        if not isinstance(args.spec, Spec):
            raise TypeError(f"the hosts platform cannot take a {type(args.spec).__name__}")
        self._name, self._args, self._spec = name, args, args.spec
        wanted = args.cluster.storage.shared
        self._shared = SharedFolder(
            path=wanted.path or "", gib=wanted.size_gib if "size_gib" in wanted.model_fields_set else 0
        )
        routes = {host.name: route(args.spec, host.name) for host in args.plan.hosts}
        # All of them before any is changed: a host that cannot be taken leaves every other as it was.
        surveys = [
            command(host, routes[host.name]) for command in (self._survey, self._reach) for host in args.plan.hosts
        ]
        hosts: list[Host] = []
        head: remote.Command | None = None
        for host in args.plan.hosts:
            lease = self._lease(host, routes[host.name], [*surveys, *([head] if head else [])])
            head = head or lease
            hosts.append(self._bring_up(host, routes[host.name], lease))
        self.hosts = hosts
        self.register_outputs({})

    def _survey(self, host: HostPlan, route: Route) -> remote.Command:
        script = survey_script(self._args.plan, host, self._spec.host(host.name).interface, self._shared)
        return remote.Command(
            f"{self._name}-{host.name}-survey",
            connection=route.connection,
            create=AS_ROOT,
            stdin=script,
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _reach(self, host: HostPlan, route: Route) -> remote.Command:
        """Run once, before the host's lease: hosts that join or leave later are no reason to log in here again."""
        return remote.Command(
            f"{self._name}-{host.name}-reach",
            connection=route.connection,
            create=AS_ROOT,
            stdin=reach_script(self._args.plan, host),
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["stdin"]),
        )

    def _lease(self, host: HostPlan, route: Route, after: Sequence[remote.Command]) -> remote.Command:
        """What is written anew is run again in place: a replacement would end the lease that it has just begun."""
        plan, keep, shared = self._args.plan, self._spec.keep_files, self._shared
        script = pulumi.Output.all(self._args.admin_key, self._args.cluster_key).apply(
            lambda keys: lease_script(plan, host, AccessKeys(keys[0], keys[1]), keep_files=keep, shared=shared)
        )
        # Workers go back before the head whose files they have mounted.
        return remote.Command(
            f"{self._name}-{host.name}-lease",
            connection=route.connection,
            create=AS_ROOT,
            delete=GIVE_BACK,
            stdin=script,
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )

    def _bring_up(self, host: HostPlan, route: Route, lease: remote.Command) -> Host:
        files = remote.Command(
            f"{self._name}-{host.name}-files",
            connection=route.connection,
            create=AS_ROOT,
            stdin=bring_up_script(self._args.plan, host, self._shared),
            # A lease begun anew is a machine that has none of the files.
            triggers=[lease.stdout],
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[lease]),
        )
        entry = self._spec.host(host.name)
        return Host(
            plan=host,
            address=entry.address,
            port=entry.port,
            user=ADMIN_USER,
            host_key=pulumi.Output.from_input(entry.host_key or ""),
            host_key_declared=True,
            machine_id=files.stdout,
            through_head=host.role is Role.WORKER and entry.proxy_jump is not None,
            proxy=route.proxy,
            proxy_jump=route.proxy_jump,
        )
