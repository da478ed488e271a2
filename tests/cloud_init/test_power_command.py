"""The channel to existing hosts, with a fake program of the site and a socket in place of trainyard-power.socket."""

from __future__ import annotations

import io
import json
import os
import shlex
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from repair import command
from repair.channels import Hosts, channel
from repair.power import OFF, ON, PowerError, RefusedError
from repair.service import Site, read_site

from components.node.parameters import render_repair
from components.platforms.registry import platform_facts
from tests.components.platforms.recording import planned

FAKE = """#!/bin/sh
# power-node --rack 4 on|off|status NODE ADDRESS. The folder contains one file for each host that is on.
folder=$(dirname "$0")
echo "$*" >>"$folder/calls"
[ ! -e "$folder/hang" ] || { sleep 60 & wait; }
[ ! -e "$folder/fail" ] || exit 3
case $3 in
  on) touch "$folder/on-$4" ;;
  off) rm -f "$folder/on-$4" ;;
  status)
    [ ! -e "$folder/wrong" ] || { echo "Chassis Power is on"; exit; }
    if [ -e "$folder/on-$4" ]; then echo on; else echo off; fi ;;
esac
"""
_ROOT = os.lstat("/")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the site's program. Files of this user count as root's, and the folders above it as safe."""

    def facts(path: Path) -> os.stat_result:
        if tmp_path != path and tmp_path in path.parents:
            found = list(path.lstat())
            found[stat.ST_UID] = 0 if found[stat.ST_UID] == os.getuid() else found[stat.ST_UID]
            return os.stat_result(found)
        return _ROOT

    monkeypatch.setattr(command, "_facts", facts)
    made = tmp_path / "site"
    made.mkdir(mode=0o755)
    program = made / "power-node"
    program.write_text(FAKE)
    program.chmod(0o755)
    return made


@pytest.fixture
def site(folder: Path) -> Site:
    """The hand-over of a stack with two elastic hosts."""
    program = [str(folder / "power-node"), "--rack", "4"]
    plan = planned("baremetal-h100", {"nodes__gpu__elastic": {"min": 0}, "platform__power_command": program}).plan
    return read_site(render_repair(plan, platform_facts("hosts").power_channel(plan)) or "")


@pytest.fixture
def serve(folder: Path, site: Site) -> Iterator[Callable[..., Hosts]]:
    """Return a function that answers on a socket with the site's program, and returns the channel."""
    address = str(folder / "socket")
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    server.settimeout(0.1)
    ended = False

    def run() -> None:
        while not ended:
            try:
                link, _ = server.accept()
            except TimeoutError:
                continue
            link.setblocking(True)
            # After an order, the client closes the connection. An exception in this thread would fail a later test.
            with suppress(ConnectionError), link, link.makefile("rw") as stream:

                def send(text: str, stream: Any = stream) -> None:
                    stream.write(f"{text}\n")
                    stream.flush()

                request = stream.readline().split()
                # On a busy machine, a program that ends at once can still need more than half a second.
                seconds = 0.5 if (folder / "hang").exists() else 30.0
                command.answer(request, site, partial(command.run_program, seconds=seconds), send)

    thread = Thread(target=run)
    thread.start()
    yield lambda **options: Hosts({"platform": "hosts", "address": address}, **options)
    ended = True
    thread.join()
    server.close()


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


def wait_for_calls(folder: Path, count: int) -> list[str]:
    end = time.monotonic() + 5
    while len(calls(folder)) < count and time.monotonic() < end:
        time.sleep(0.01)
    return calls(folder)


def test_the_program_turns_hosts_on_and_off(serve: Callable[..., Hosts], folder: Path, site: Site) -> None:
    power = serve()
    (a, address), (b, other) = site.addresses.items()
    assert power.states([a, b]) == {a: OFF, b: OFF}
    assert sorted(calls(folder)) == [f"--rack 4 status {a} {address}", f"--rack 4 status {b} {other}"]
    power.start(a)
    assert wait_for_calls(folder, 3)[2:] == [f"--rack 4 on {a} {address}"]
    assert power.states([a, b]) == {a: ON, b: OFF}
    power.stop(a)
    assert wait_for_calls(folder, 6)[5:] == [f"--rack 4 off {a} {address}"]
    assert power.states([a]) == {a: OFF}
    assert power.failures() == {}


def test_a_repeated_name_is_asked_once(folder: Path, site: Site) -> None:
    answers: list[str] = []
    name, address = next(iter(site.addresses.items()))
    command.answer(["states", *[name] * 3], site, command.run_program, answers.append)
    assert [json.loads(text) for text in answers] == [{name: OFF}]
    assert calls(folder) == [f"--rack 4 status {name} {address}"]


def test_a_request_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stdin = io.StringIO("states " + "gpu1 " * (1 << 20))
    monkeypatch.setattr("sys.stdin", stdin)
    monkeypatch.setattr(command, "read_site", lambda text: Site(10.0, ()))
    monkeypatch.setattr(Path, "read_text", lambda path: "")
    command.main()
    assert stdin.tell() <= 1 << 20
    assert "error" in json.loads(capsys.readouterr().out)


def test_the_states_of_many_silent_hosts_are_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's program runs for 64 hosts at the same time, and each can take the whole limit."""
    waited: list[float | None] = []
    connect = Hosts._connect

    def refuse(power: Hosts, *arguments: Any) -> socket.socket:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(arguments[0])
            server.listen()
            with connect(power, *arguments) as link:
                waited.append(link.gettimeout())
        Path(arguments[0]).unlink()
        raise ConnectionRefusedError

    monkeypatch.setattr(Hosts, "_connect", refuse)
    power = Hosts({"platform": "hosts", "address": str(tmp_path / "socket")})
    for count in (64, 65, 200):
        with pytest.raises(PowerError):
            power.states([f"gpu{at}" for at in range(count)])
    assert waited == [25.0, 40.0, 70.0]


FAULTS = {"hang": "did not end within", "fail": "exit code 3", "wrong": "printed 'Chassis Power is on'"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_host_without_an_answer_is_unknown_for_a_minute(
    serve: Callable[..., Hosts], folder: Path, site: Site, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    power = serve(clock=lambda: now[0])
    a, b = site.addresses
    (folder / fault).touch()
    assert power.states([a]) == {}
    assert FAULTS[fault] in capfd.readouterr().err
    (folder / fault).unlink()
    now[0] += 59
    assert power.states([a, b]) == {b: OFF}
    now[0] += 1
    assert power.states([a, b]) == {a: OFF, b: OFF}


def test_an_order_does_not_wait_for_the_program(serve: Callable[..., Hosts], folder: Path, site: Site) -> None:
    power = serve()
    (folder / "hang").touch()
    begin = time.monotonic()
    power.start(next(iter(site.addresses)))
    assert time.monotonic() - begin < 0.4


def _writable_program(folder: Path) -> None:
    (folder / "power-node").chmod(0o775)


def _writable_folder(folder: Path) -> None:
    folder.chmod(0o757)


def _link(folder: Path) -> None:
    (folder / "power-node").rename(folder / "real")
    (folder / "power-node").symlink_to(folder / "real")


def _missing(folder: Path) -> None:
    (folder / "power-node").unlink()


def _linked_folder(folder: Path) -> None:
    folder.rename(folder.parent / "real")
    folder.symlink_to(folder.parent / "real")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_writable_program, "power-node can be changed by others than root. Fix: sudo chown root"),
        (_writable_folder, "site can be changed by others than root. Fix: sudo chown root"),
        (_link, "power-node is a link or has the wrong type. Fix: write a path without links"),
        (_linked_folder, "site is a link or has the wrong type"),
        (_missing, "No such file or directory. Fix: install the program on the head"),
    ],
)
def test_a_program_that_others_can_change_never_runs(
    serve: Callable[..., Hosts], folder: Path, site: Site, change: Callable[[Path], None], text: str
) -> None:
    power, name = serve(), next(iter(site.addresses))
    change(folder)
    for call in (lambda: power.states([name]), lambda: power.start(name), lambda: power.stop(name)):
        with pytest.raises(PowerError, match=text) as caught:
            call()
        # A refused start would hold the node for ten minutes.
        assert not isinstance(caught.value, RefusedError)
    assert calls(folder) == []


def test_a_program_of_another_user_never_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(_ROOT)
    found[stat.ST_UID] = 1500
    monkeypatch.setattr(command, "_facts", lambda path: os.stat_result(found) if path.name == "site" else _ROOT)
    assert f"{folder} can be changed by others than root" in (command.unsafe(folder / "power-node") or "")


@pytest.mark.parametrize("request_line", ["", "states", "reboot gpu1", "start gpu9", "stop small", "start -x"])
def test_only_nodes_of_elastic_groups_are_turned_on_or_off(folder: Path, site: Site, request_line: str) -> None:
    answers: list[str] = []
    command.answer(request_line.split(), site, command.run_program, answers.append)
    assert [json.loads(text) for text in answers] == [{"error": "unknown request or node"}]
    assert calls(folder) == []


def test_a_program_that_hangs_is_killed_with_its_processes(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! >{shlex.quote(str(tmp_path / 'child'))}; wait"
    with pytest.raises(PowerError, match=r"did not end within 0 s"):
        command.run_program(["/bin/sh", "-c", script], 0.3)
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + 5
    while time.monotonic() < end and _runs(child):
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_the_socket_the_error_is_temporary(tmp_path: Path) -> None:
    power = channel({"platform": "hosts", "address": str(tmp_path / "socket")})
    assert power is not None
    with pytest.raises(PowerError) as caught:
        power.states(["a"])
    assert type(caught.value) is PowerError
