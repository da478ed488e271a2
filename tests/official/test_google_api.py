"""The simulated Google API itself, without the provider."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.official.google_api import serving

_ZONE = "/compute/v1/projects/p/zones/z"
_NETWORKS, _SUBNETS = "/compute/v1/projects/p/global/networks", "/compute/v1/projects/p/regions/r/subnetworks"


def ask(url: str, method: str = "GET", body: object = None) -> Any:
    request = Request(url, method=method, data=json.dumps(body).encode() if body is not None else None)  # noqa: S310  (the URL is on loopback)
    with urlopen(request, timeout=10) as answer:  # noqa: S310
        return json.load(answer)


def test_a_machine_has_a_boot_disk_and_a_network() -> None:
    with serving() as (api, url):
        ask(url + _NETWORKS, "POST", {"name": "net"})
        ask(url + _SUBNETS, "POST", {"name": "sub", "network": "projects/p/global/networks/net"})
        card = {"subnetwork": "projects/p/regions/r/subnetworks/sub"}
        disk = {"boot": True, "autoDelete": True, "initializeParams": {"diskSizeGb": "20"}}
        ask(f"{url}{_ZONE}/instances", "POST", {"name": "vm", "disks": [disk], "networkInterfaces": [card]})
        made = ask(f"{url}{_ZONE}/instances/vm")
        assert made["networkInterfaces"][0]["network"].endswith("/projects/p/global/networks/net")
        assert made["disks"][0]["source"].endswith("/projects/p/zones/z/disks/vm")
        assert ask(f"{url}{_ZONE}/disks/vm")["sizeGb"] == "20"
        key = ask(f"{url}{_ZONE}/instances/vm/getGuestAttributes?variableKey=hostkeys/ssh-ed25519")["variableValue"]
        assert key.startswith("ssh-ed25519 AAAA")
        with pytest.raises(HTTPError, match="400"):
            ask(f"{url}{_ZONE}/disks/vm/resize", "POST", {"sizeGb": "10"})
        with pytest.raises(HTTPError, match="400"):
            ask(f"{url}{_SUBNETS}/sub", "DELETE")
        ask(f"{url}{_ZONE}/instances/vm", "DELETE")
        assert sorted(api.resources) == ["projects/p/global/networks/net", "projects/p/regions/r/subnetworks/sub"]
        with pytest.raises(HTTPError, match="404"):
            ask(f"{url}{_ZONE}/instances/vm")
