"""SSH host keys: the keys that the clouds' APIs return, and the keys in the stack's state."""

from __future__ import annotations

import asyncio
import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pulumi
import pytest

from components.host_keys import Known, Offer, _Provider, fingerprint, merged_keys
from components.platforms.azure import nodes as azure
from components.platforms.base import host_key_wait
from components.platforms.gcp import nodes as gcp
from offline.cloud.outputs import host_key
from trainyard.errors import PlatformError
from trainyard.machines import ACCEPT
from trainyard.outputs import HOST_KEY

KEY, OTHER = host_key("c-head"), host_key("other")
BLOB = KEY.split()[1]
EMPTY: dict[str, Any] = {}
PUBLISHED = {"variableValue": f"{BLOB}\n"}
GONE = "invoke of gcp:compute/... failed: projects/p-1/zones/us-central1-a/instances/c-head not found"
GONE_CONSOLE = "googleapi: Error 404: The resource 'projects/p-1/zones/us-central1-a/instances/c-head' was not found"
STOPPED = "googleapi: Error 400: The resource 'projects/p-1/zones/z/instances/c-head' is not ready, resourceNotReady"
FORBIDDEN = "googleapi: Error 403: Required 'compute.instances.get' permission, forbidden"
MARK = gcp.CONSOLE_MARK
NEW, OLD = timedelta(minutes=1), timedelta(minutes=21)


class Cloud:
    """Results of functions, in order. The last result is repeated. A string is raised as an error."""

    def __init__(self) -> None:
        self.answers: list[Any] = [EMPTY]
        """Results of Azure's run command, or Google's guest attributes."""
        self.console: list[Any] = [EMPTY]
        self.asked: list[dict[str, Any]] = []
        self.waited = 0.0
        self.warnings: list[str] = []
        self.preview = False

    async def invoke(self, token: str, where: dict[str, Any], options: pulumi.InvokeOptions) -> dict[str, Any]:
        self.asked.append({"token": token, **where})
        answers = self.console if token == gcp._CONSOLE else self.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return dict(answer)

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.waited += seconds

    def azure(self, age: timedelta | None = NEW) -> str:
        """Return the host key of a machine that was created `age` ago, or at an unknown time."""
        # Azure's timestamps have seven fractional digits.
        created = "" if age is None else (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%S.%f7+00:00")
        return asyncio.run(azure._read_key("c-head", "c-trainyard", created, pulumi.InvokeOptions()))

    def gcp(self, age: timedelta | None = NEW) -> str:
        machine = gcp._Machine(name="c-head", zone="us-central1-a", project="p-1")
        created = None if age is None else (datetime.now(UTC) - age).isoformat()
        return asyncio.run(gcp._read(machine, host_key_wait(created)))


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    cloud = Cloud()
    monkeypatch.setattr(pulumi.runtime, "invoke_async", cloud.invoke)
    monkeypatch.setattr(asyncio, "sleep", cloud.sleep)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: cloud.preview)
    monkeypatch.setattr(pulumi.log, "debug", lambda *arguments: None)
    monkeypatch.setattr(pulumi.log, "warn", lambda text, resource: cloud.warnings.append(text))
    return cloud


def output(text: str | None) -> dict[str, Any]:
    return {"instanceView": None if text is None else {"output": text}}


def test_a_new_azure_machine_is_read_until_it_has_a_key(cloud: Cloud) -> None:
    cloud.answers = ["409 OperationNotAllowed", output(None), output(""), output(f"{KEY}\n")]
    assert cloud.azure() == KEY
    assert len(cloud.asked) == 4
    assert (cloud.asked[0]["runCommandName"], cloud.asked[0]["expand"]) == ("trainyard-host-key", "instanceView")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (KEY, KEY),
        (f"Enable succeeded: \n{KEY}\r\n", KEY),
        (f"{KEY}\n{KEY}\n", KEY),
        ("", ""),
        (f"{KEY} root@c-gpu-0", ""),
        (f"{KEY}\n{OTHER}", ""),
        ("ssh-rsa AAAAB3Nza", ""),
        (f"@cert-authority * {KEY}", ""),
        (f"{KEY[:20]}\n{KEY[20:]}", ""),
    ],
)
def test_only_a_single_complete_key_of_azure_is_returned(text: str, key: str) -> None:
    assert azure.key_in(text) == key


@pytest.mark.parametrize("provider", ["azure", "gcp"])
def test_a_new_machine_without_a_key_ends_after_15_minutes(cloud: Cloud, provider: str) -> None:
    assert getattr(cloud, provider)() == ""
    assert 880 <= cloud.waited <= 900
    consoles = [asked for asked in cloud.asked if asked["token"] == gcp._CONSOLE]
    assert len(consoles) < len(cloud.asked) / 5


@pytest.mark.parametrize(
    ("provider", "age", "preview", "answer"),
    [
        ("azure", OLD, False, EMPTY),
        ("azure", OLD, False, output("")),
        ("azure", OLD, False, "404 ResourceNotFound"),
        ("azure", None, False, EMPTY),
        ("azure", NEW, True, EMPTY),
        ("gcp", OLD, False, EMPTY),
        ("gcp", None, False, EMPTY),
        ("gcp", NEW, True, EMPTY),
        ("gcp", NEW, True, GONE),
        ("gcp", NEW, True, FORBIDDEN),
    ],
)
def test_an_older_machine_or_a_preview_gets_one_attempt(
    cloud: Cloud, provider: str, age: timedelta | None, preview: bool, answer: Any
) -> None:
    cloud.preview, cloud.answers = preview, [answer]
    assert getattr(cloud, provider)(age) == ""
    assert cloud.waited == 0
    assert len({asked["token"] for asked in cloud.asked}) == len(cloud.asked)


def test_an_empty_result_of_google_is_retried(cloud: Cloud) -> None:
    cloud.answers = [EMPTY, EMPTY, {"variableValue": ""}, PUBLISHED]
    assert cloud.gcp() == KEY
    assert cloud.asked[0]["variableKey"] == "hostkeys/ssh-ed25519"
    assert cloud.waited == 1 + 2 + 4
    cloud.answers = [{"variableValue": KEY}]
    assert cloud.gcp() == KEY


@pytest.mark.parametrize(
    "value",
    [
        f"{BLOB}\n10.77.0.4 {OTHER}",
        f"ssh-rsa {BLOB}",
        f"ssh-ed25519 {BLOB[:-2]}==",
        f"ssh-ed25519  {BLOB}",
        f"@cert-authority * {KEY}",
    ],
)
def test_anything_but_one_key_of_google_is_refused(cloud: Cloud, value: str) -> None:
    cloud.answers, cloud.console = [{"variableValue": value}], [{"contents": f"{MARK}{value}"}]
    assert cloud.gcp() == ""


def test_the_console_is_the_fallback(cloud: Cloud) -> None:
    noise = f"[    3.1] x trainyard-hostkey: {OTHER}\r\n"
    # The first key is the machine's.
    text = "x" * 200_000 + f"\n{noise}trainyard-hostkey: {KEY}\r\n{MARK}{OTHER}\nlogin: "
    cloud.console = [EMPTY, {"contents": text}]
    assert cloud.gcp() == KEY
    assert cloud.warnings == []
    assert [asked["token"] for asked in cloud.asked].count(gcp._CONSOLE) == 2
    assert (cloud.asked[-1]["instance"], cloud.asked[-1]["port"]) == ("c-head", 1)


def test_the_console_is_trusted_only_during_the_first_boot(cloud: Cloud) -> None:
    cloud.console = [{"contents": f"{MARK}{OTHER}\n"}]
    assert cloud.gcp(OLD) == ""
    [warning] = cloud.warnings
    assert "the key on the serial console of c-head is not used" in warning
    assert "`pulumi up --replace URN`" in warning


@pytest.mark.parametrize("later", ["x" * 999_000, "\N{EURO SIGN}" * 333_000])
def test_a_console_that_may_have_lost_lines_is_not_trusted(cloud: Cloud, later: str) -> None:
    cloud.console = [{"contents": f"{MARK}{OTHER}\n{later}"}]
    assert cloud.gcp() == ""
    assert len(cloud.warnings) == 1
    cloud.answers = [PUBLISHED]
    assert cloud.gcp() == KEY


def test_the_bootstrap_prints_the_line_that_is_read() -> None:
    bootstrap = Path(__file__).parents[3] / "cloud-init/files/usr/local/lib/trainyard/bootstrap"
    assert f'console "{MARK}$algorithm $key"' in bootstrap.read_text()
    assert f"guest-attributes/{gcp.KEY.partition('/')[0]}/$1" in bootstrap.read_text()


@pytest.mark.parametrize(
    ("answer", "console", "warning"),
    [
        (EMPTY, STOPPED, "c-head is stopped. `pulumi up --refresh` starts it"),
        (GONE, EMPTY, "c-head does not exist in p-1, us-central1-a: it was deleted outside Pulumi. Run `pulumi "),
        (EMPTY, GONE_CONSOLE, "c-head does not exist in p-1, us-central1-a"),
    ],
)
def test_a_stopped_or_deleted_machine_is_read_once(cloud: Cloud, answer: Any, console: Any, warning: str) -> None:
    cloud.answers, cloud.console = [answer], [console]
    assert cloud.gcp() == ""
    assert cloud.waited == 0
    [found] = cloud.warnings
    assert warning in found


def test_an_unreadable_console_causes_a_warning(cloud: Cloud) -> None:
    cloud.console = [FORBIDDEN]
    assert cloud.gcp() == ""
    [warning] = cloud.warnings
    assert "its console cannot be read: googleapi: Error 403" in warning


def test_up_fails_without_permission_to_read_a_machine(cloud: Cloud) -> None:
    cloud.answers = [FORBIDDEN]
    with pytest.raises(RuntimeError, match="Error 403"):
        cloud.gcp()
    assert cloud.waited == 0


def reported(name: str, machine: str, text: str, *, declared: bool = False) -> dict[str, Any]:
    return {"name": name, "machine": machine, "key": text, "declared": declared}


A, B = reported("yard-head", "id-1", host_key("a")), reported("yard-gpu-0", "id-2", host_key("b"))
KNOWN = {offer["name"]: {"machine": offer["machine"], "key": offer["key"]} for offer in (A, B)}


@pytest.mark.parametrize(
    ("known", "worker", "stored"),
    [
        ({}, B, KNOWN["yard-gpu-0"]),
        (KNOWN, B, KNOWN["yard-gpu-0"]),
        # An evicted machine reports no key.
        (KNOWN, reported("yard-gpu-0", "id-2", ""), KNOWN["yard-gpu-0"]),
        # A replaced machine, a key in the stack file, and a key with a comment.
        (KNOWN, reported("yard-gpu-0", "id-3", OTHER), {"machine": "id-3", "key": OTHER}),
        (KNOWN, reported("yard-gpu-0", "id-2", OTHER, declared=True), {"machine": "id-2", "key": OTHER}),
        ({}, reported("yard-gpu-0", "id-2", f"{OTHER} root@host"), {"machine": "id-2", "key": OTHER}),
    ],
)
def test_stores_the_first_key_of_each_machine(known: Known, worker: Offer, stored: dict[str, str]) -> None:
    assert merged_keys(known, [A, worker], []) == {"yard-head": KNOWN["yard-head"], "yard-gpu-0": stored}
    assert list(merged_keys(known, [A], [])) == ["yard-head"]


def test_accepts_exactly_the_named_key() -> None:
    changed = [A, reported("yard-gpu-0", "id-2", OTHER)]
    assert merged_keys(KNOWN, changed, [fingerprint(OTHER)])["yard-gpu-0"]["key"] == OTHER
    new = re.escape(fingerprint(OTHER))
    for accepted in ([], [fingerprint(host_key("b")), "yard-gpu-0"]):
        with pytest.raises(PlatformError, match=rf"yard-gpu-0 \({new}\): .* has changed .*--config {ACCEPT}={new}`"):
            merged_keys(KNOWN, changed, accepted)


def test_names_all_machines_without_a_key() -> None:
    offers = [reported("yard-head", "id-1", ""), reported("yard-gpu-0", "id-3", "")]
    with pytest.raises(PlatformError, match="no SSH host key is known for yard-head, yard-gpu-0") as refused:
        merged_keys({**KNOWN, "yard-head": {"machine": "id-0", "key": host_key("a")}}, offers, [])
    assert "Fix: " in str(refused.value)


@pytest.mark.parametrize("text", [f"{OTHER}\n", "ssh-ed25519 AAAAshort", f"@cert-authority {OTHER}", "offline"])
def test_refuses_malformed_keys(text: str) -> None:
    with pytest.raises(PlatformError, match="yard-gpu-0: the SSH host key is not one line"):
        merged_keys({}, [A, reported("yard-gpu-0", "id-2", text)], [])


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_accepts_keys_generated_by_openssh(kind: str, tmp_path: Path) -> None:
    bits = {"rsa": ["-b", "2048"]}.get(kind, [])
    made = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", "", "-C", "", "-f", str(tmp_path / "key")]
    subprocess.run(made, check=True)
    public = (tmp_path / "key.pub").read_text().strip()
    assert HOST_KEY.fullmatch(public)
    listed = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key"], check=True, capture_output=True, text=True).stdout
    assert fingerprint(public) in listed.split()


def test_only_an_update_refuses_a_changed_key() -> None:
    """An error in `diff` would abort a preview. The engine's tests check the other operations."""
    outs = {"cluster": "yard", "offers": [A, B], "accepted": [], "known": KNOWN}
    attack = outs | {"offers": [reported("yard-head", "id-1", host_key("x")), B], "known": None}
    assert _Provider().diff("id", outs, attack).changes is True
