"""Tests for the SSH host keys of GCP machines: waits, validation and missing keys."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pulumi
import pytest

from components.platforms.base import host_key_wait
from components.platforms.gcp import nodes
from offline.cloud.outputs import host_key

KEY, OTHER = host_key("c-head"), host_key("other")
BLOB = KEY.split()[1]
EMPTY: dict[str, Any] = {}
PUBLISHED = {"variableValue": f"{BLOB}\n"}
GONE = "invoke of gcp:compute/... failed: projects/p-1/zones/us-central1-a/instances/c-head not found"
GONE_CONSOLE = "googleapi: Error 404: The resource 'projects/p-1/zones/us-central1-a/instances/c-head' was not found"
STOPPED = "googleapi: Error 400: The resource 'projects/p-1/zones/z/instances/c-head' is not ready, resourceNotReady"
FORBIDDEN = "googleapi: Error 403: Required 'compute.instances.get' permission, forbidden"


class Cloud:
    """Results of the two data sources, in order. The last result is repeated. A string is raised as an error."""

    def __init__(self) -> None:
        self.attributes: list[Any] = [EMPTY]
        self.console: list[Any] = [EMPTY]
        self.asked: list[dict[str, Any]] = []
        self.waited = 0.0
        self.warnings: list[str] = []
        self.preview = False

    async def invoke(self, token: str, where: dict[str, Any], options: pulumi.InvokeOptions) -> dict[str, Any]:
        self.asked.append({"token": token, **where})
        answers = self.attributes if "GuestAttributes" in token else self.console
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return dict(answer)

    async def sleep(self, seconds: float) -> None:
        self.waited += seconds

    def read(self, age: timedelta = timedelta(minutes=1)) -> str:
        """Return the host key of a machine that was created `age` ago."""
        machine = nodes._Machine(name="c-head", zone="us-central1-a", project="p-1")
        return asyncio.run(nodes._read(machine, host_key_wait((datetime.now(UTC) - age).isoformat())))


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    cloud = Cloud()
    monkeypatch.setattr(pulumi.runtime, "invoke_async", cloud.invoke)
    monkeypatch.setattr(asyncio, "sleep", cloud.sleep)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: cloud.preview)
    monkeypatch.setattr(pulumi.log, "warn", lambda text, resource: cloud.warnings.append(text))
    return cloud


def test_an_empty_result_is_retried(cloud: Cloud) -> None:
    cloud.attributes = [EMPTY, EMPTY, {"variableValue": ""}, PUBLISHED]
    assert cloud.read() == KEY
    assert cloud.asked[0] == {
        "token": "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes",
        "name": "c-head",
        "zone": "us-central1-a",
        "project": "p-1",
        "variableKey": "hostkeys/ssh-ed25519",
    }
    assert cloud.waited == 1 + 2 + 4


def test_a_key_with_its_type_is_accepted(cloud: Cloud) -> None:
    cloud.attributes = [{"variableValue": KEY}]
    assert cloud.read() == KEY


@pytest.mark.parametrize(
    "value",
    [
        f"{BLOB}\n10.77.0.4 {OTHER}",
        f"{BLOB} comment",
        f"ssh-rsa {BLOB}",
        f"ssh-ed25519 {BLOB[:-2]}==",
        f"ssh-ed25519  {BLOB}",
        f"{BLOB[:-1]}\x00",
        f"@cert-authority * {KEY}",
    ],
)
def test_anything_but_one_key_is_refused(cloud: Cloud, value: str) -> None:
    cloud.attributes = [{"variableValue": value}]
    cloud.console = [{"contents": f"{nodes.CONSOLE_MARK}{value}"}]
    assert cloud.read() == ""


def test_the_console_is_the_fallback(cloud: Cloud) -> None:
    noise = f"[    3.1] x trainyard-hostkey: {OTHER}\r\n"
    cloud.console = [EMPTY, {"contents": f"{noise}trainyard-hostkey: {KEY}\r\nlogin: "}]
    assert cloud.read() == KEY
    assert [asked["token"] for asked in cloud.asked].count(nodes._CONSOLE) == 2
    assert cloud.asked[-1] == {
        "token": "gcp:compute/getInstanceSerialPort:getInstanceSerialPort",
        "instance": "c-head",
        "zone": "us-central1-a",
        "project": "p-1",
        "port": 1,
    }


def test_the_first_key_on_the_console_is_returned(cloud: Cloud) -> None:
    mark = nodes.CONSOLE_MARK
    cloud.console = [{"contents": f"{mark}{KEY}\n{mark}{OTHER}\n"}]
    assert cloud.read() == KEY


def test_the_console_is_trusted_only_during_the_first_boot(cloud: Cloud) -> None:
    cloud.console = [{"contents": f"{nodes.CONSOLE_MARK}{OTHER}\n"}]
    assert cloud.read(timedelta(minutes=21)) == ""
    assert len(cloud.warnings) == 1
    assert "the key on the serial console of c-head is not used" in cloud.warnings[0]
    assert "`pulumi up --replace URN`" in cloud.warnings[0]


@pytest.mark.parametrize("later", ["x" * 999_000, "\N{EURO SIGN}" * 333_000])
def test_a_console_that_may_have_lost_lines_is_not_trusted(cloud: Cloud, later: str) -> None:
    cloud.console = [{"contents": f"{nodes.CONSOLE_MARK}{OTHER}\n{later}"}]
    assert cloud.read() == ""
    assert len(cloud.warnings) == 1
    cloud.attributes = [PUBLISHED]
    assert cloud.read() == KEY


def test_the_console_of_a_usual_first_boot_is_trusted(cloud: Cloud) -> None:
    cloud.console = [{"contents": "x" * 200_000 + f"\n{nodes.CONSOLE_MARK}{KEY}\n"}]
    assert cloud.read() == KEY
    assert cloud.warnings == []


def test_the_bootstrap_prints_the_line_that_is_read() -> None:
    bootstrap = Path(__file__).parents[4] / "cloud-init/files/usr/local/lib/trainyard/bootstrap"
    assert f'console "{nodes.CONSOLE_MARK}$algorithm $key"' in bootstrap.read_text()
    assert f"guest-attributes/{nodes.KEY.partition('/')[0]}/$1" in bootstrap.read_text()


def test_a_new_machine_without_a_key_ends_after_15_minutes(cloud: Cloud) -> None:
    assert cloud.read() == ""
    assert 880 <= cloud.waited <= 900
    consoles = [asked for asked in cloud.asked if asked["token"] == nodes._CONSOLE]
    assert len(consoles) < len(cloud.asked) / 5


def test_an_old_machine_is_read_once(cloud: Cloud) -> None:
    assert cloud.read(timedelta(minutes=21)) == ""
    assert (cloud.waited, len(cloud.asked)) == (0, 2)


def test_a_stopped_machine_is_read_once(cloud: Cloud) -> None:
    cloud.console = [STOPPED]
    assert cloud.read() == ""
    assert (cloud.waited, len(cloud.asked)) == (0, 2)
    assert cloud.warnings == ["c-head is stopped. `pulumi up --refresh` starts it"]


def test_an_unreadable_console_causes_a_warning(cloud: Cloud) -> None:
    cloud.console = [FORBIDDEN]
    assert cloud.read() == ""
    assert len(cloud.warnings) == 1
    assert "its console cannot be read: googleapi: Error 403" in cloud.warnings[0]


def test_a_machine_that_was_deleted_leads_to_refresh(cloud: Cloud) -> None:
    for attribute, console in ((GONE, EMPTY), (EMPTY, GONE_CONSOLE)):
        cloud.attributes, cloud.console = [attribute], [console]
        assert cloud.read() == ""
        assert cloud.waited == 0
        assert "c-head does not exist" in cloud.warnings[-1]
        assert "Run `pulumi refresh`" in cloud.warnings[-1]


@pytest.mark.parametrize("answer", [EMPTY, GONE, FORBIDDEN])
def test_a_preview_reads_once_and_does_not_fail(cloud: Cloud, answer: Any) -> None:
    cloud.preview = True
    cloud.attributes = [answer]
    assert cloud.read() == ""
    assert cloud.waited == 0


def test_up_fails_without_permission_to_read_a_machine(cloud: Cloud) -> None:
    cloud.attributes = [FORBIDDEN]
    with pytest.raises(RuntimeError, match="Error 403"):
        cloud.read()
    assert cloud.waited == 0


def test_a_machine_of_unknown_age_is_read_once(cloud: Cloud) -> None:
    assert host_key_wait(None) == 0
