"""What the network of a cluster offers to the rest of the platform."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pulumi
import pytest

from components.platforms.azure.network import Network, NetworkArgs
from components.platforms.azure.site import Site
from tests.platforms.azure.conftest import answer, tell
from tests.platforms.recording import Recorder


@pytest.mark.parametrize("bastion", [IPv4Network("10.78.0.0/26"), None])
def test_the_network_exposes_the_id_of_its_bastion(
    loops: asyncio.AbstractEventLoop, bastion: IPv4Network | None
) -> None:
    pulumi.runtime.set_mocks(Recorder(answer, tell), preview=False)
    found: list[Any] = []

    def program() -> pulumi.Output[Any]:
        known = pulumi.Output.from_input("group")
        site = Site(cluster="c", group=known, group_id=known, region="eastus", zone=None)
        args = NetworkArgs(
            cidr=IPv4Network("10.77.0.0/20"), head=IPv4Address("10.77.0.4"), ssh_from=(), bastion=bastion
        )
        return pulumi.Output.from_input(Network("network", site, args).bastion).apply(found.append)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    [made] = found
    assert (made is not None and made.endswith("/bastionHosts/c-bastion")) == (bastion is not None)
