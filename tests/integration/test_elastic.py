"""An elastic group on virtual machines: machines stop when they are idle, and start for waiting jobs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, Project, alive, wait_until
from trainyard.faults import POWER, reason_for

pytestmark = [pytest.mark.integration, pytest.mark.full]

IDLE_SECONDS = 60
STOP_SECONDS = 30
"""Target for the time from the end of the idle time until the machine is off."""
START_FACTOR = 1.2
"""Target for the time from the submission to the start of a job, in boots of its machine until the node is ready."""
CHECK_SECONDS = 30
"""slurmctld checks only this often whether the nodes of a batch job have started (PERIODIC_TIMEOUT, which calls
job_time_limit, in slurmctld/controller.c of Slurm 24.11.5, read 2026-11-26)."""
HELLO = "name: hello\nnodes: {nodes}\ntime: 5m\nrun: hostname\n"


@pytest.fixture(scope="module", autouse=True)
def _elastic(cluster: Project) -> Iterator[None]:
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(elastic={"min": 0, "idle_minutes": 1}))
    cluster.stack("up", timeout=900)
    yield
    cluster.stack("refresh", timeout=300)
    cluster.edit(lambda spec: spec["nodes"]["gpu"].pop("elastic"))
    cluster.stack("up", timeout=900)
    cluster.wait_idle()


def is_on(cluster: Project, node: str) -> bool:
    found = list((cluster.folder / ".trainyard" / "run" / "local").rglob(f"{node}/qemu.pid"))
    return bool(found) and found[0].read_text().strip().isdigit() and alive(int(found[0].read_text()))


def on(cluster: Project) -> list[str]:
    return [node for node in (FIRST, SECOND) if is_on(cluster, node)]


def states(cluster: Project) -> dict[str, tuple[str, str]]:
    return {row["name"]: (row["state"], row["why"]) for row in cluster.yard_json("nodes") if row["name"] != HEAD}


def wait_off(cluster: Project) -> None:
    wait_until("all machines to be off", IDLE_SECONDS + STOP_SECONDS + 120, lambda: not on(cluster), 0.5)
    wait_until(
        "Slurm to power the nodes down", 100, lambda: {state for state, _ in states(cluster).values()} == {"off"}
    )


def submit(cluster: Project, nodes: int) -> dict[str, Any]:
    (cluster.folder / "hello.yaml").write_text(HELLO.format(nodes=nodes))
    return cluster.submit("hello.yaml")


def wait_completed(cluster: Project, job: dict[str, Any], seconds: float = 400) -> None:
    wait_until(f"job {job['id']}", seconds, lambda: cluster.job_state(job) == "COMPLETED")


def start_file(cluster: Project, node: str) -> Path:
    return cluster.folder / ".trainyard" / "run" / "local" / node / "start.json"


def test_idle_machines_stop(cluster: Project) -> None:
    wait_off(cluster)
    assert is_on(cluster, HEAD)


def test_up_refresh_and_preview_leave_machines_off(cluster: Project) -> None:
    wait_off(cluster)
    cluster.stack("preview", "--expect-no-changes")
    cluster.stack("refresh", timeout=300)
    cluster.stack("preview", "--expect-no-changes")
    done = cluster.stack("up")
    assert "unchanged" in done.out
    assert on(cluster) == []


def test_a_job_starts_its_machine_which_stops_afterwards(cluster: Project) -> None:
    wait_off(cluster)
    begin = time.time()
    job = submit(cluster, 1)
    wait_until("the job to wait for its machine", 60, lambda: "starting" in str(states(cluster)))
    wait_completed(cluster, job)
    (node,) = on(cluster)
    form = "sudo env SLURM_TIME_FORMAT=%s sacct -X -D -n -P -o Start,End"
    start, end = map(float, cluster.on(HEAD, f"{form} -j {job['id']}").split()[-1].split("|"))
    cluster.wait_ready(node)
    ready = float(json.loads(cluster.on(node, "cat /var/lib/trainyard/status.json"))["uptime"])
    wait_until("the machine to be off", IDLE_SECONDS + 120, lambda: not is_on(cluster, node), 0.5)
    stopped = time.time() - end
    sys.stdout.write(
        f"job started {start - begin:.0f} s after its submission; the node was ready {ready:.0f} s after power-on; "
        f"the machine was off {stopped:.0f} s after the end of the job\n"
    )
    assert start - begin <= START_FACTOR * ready + CHECK_SECONDS
    assert stopped <= IDLE_SECONDS + STOP_SECONDS


def test_a_machine_that_cannot_start_is_replaced_by_another(cluster: Project) -> None:
    wait_off(cluster)
    files = {node: start_file(cluster, node) for node in (FIRST, SECOND)}
    texts = {node: path.read_text() for node, path in files.items()}
    files[FIRST].write_text(json.dumps(json.loads(texts[FIRST]) | {"memory_mib": 10**8}))
    job = submit(cluster, 1)
    wait_completed(cluster, job)
    assert on(cluster) == [SECOND]
    state, why = states(cluster)[FIRST]
    assert state.startswith("down")
    assert why.startswith(reason_for(POWER, "the machine cannot start: it needs "))
    both = submit(cluster, 2)
    assert f"waiting for a machine: {FIRST}: the machine cannot start" in cluster.yard("ps").out
    files[FIRST].write_text(texts[FIRST])
    cluster.yard("undrain", FIRST)
    wait_completed(cluster, both)


def test_the_job_of_a_killed_machine_starts_again(cluster: Project) -> None:
    (cluster.folder / "long.yaml").write_text("name: long\nnodes: 1\ntime: 10m\nrun: sleep 45\n")
    job = cluster.submit("long.yaml")
    wait_until("the job to run", 300, lambda: cluster.job_state(job) == "RUNNING")
    node = cluster.job_field(job["id"], "BatchHost")
    cluster.kill(node)
    wait_completed(cluster, job)
    wait_off(cluster)


def test_a_drained_node_that_is_off_starts_no_machine(cluster: Project) -> None:
    wait_off(cluster)
    cluster.yard("drain", FIRST, "--reason", "fan")
    job = submit(cluster, 1)
    wait_completed(cluster, job)
    assert on(cluster) == [SECOND]
    wait_off_second = IDLE_SECONDS + STOP_SECONDS + 60
    wait_until("the second machine to be off", wait_off_second, lambda: not on(cluster), 0.5)
    assert states(cluster)[FIRST][0].startswith("drain")
    cluster.yard("undrain", FIRST)
    wait_off(cluster)


def test_only_root_on_the_head_reaches_the_channel(cluster: Project) -> None:
    probe = "timeout 5 bash -c 'exec 3<>/dev/tcp/10.0.2.100/80; echo states it-gpu-0 >&3; head -n 1 <&3'"
    answer = '{"it-gpu-0": '
    assert answer in cluster.as_root(HEAD, probe)
    assert answer not in cluster.on(HEAD, f"{probe} || true")
    as_trainer = f"sudo setpriv --reuid=trainer --regid=trainer --init-groups {probe} || true"
    assert answer not in cluster.on(HEAD, as_trainer)


POWER_PROGRAM = """\
#!/usr/bin/python3
# A site's program, which uses the channel of the local machines in place of a management controller.
import json, sys
sys.path.insert(0, "/usr/local/lib/trainyard")
from repair.channels import channel
verb, node, address = sys.argv[1:]
with open("/root/power.log", "a") as log:
    log.write(f"{verb} {node} {address}\\n")
power = channel(json.load(open("/root/channel.json")))
if verb == "status":
    print(power.states([node])[node])
else:
    {"on": power.start, "off": power.stop}[verb](node)
"""
HANDOVER = "/var/lib/trainyard/handover/repair.json"


def test_a_sites_program_starts_and_stops_machines(cluster: Project) -> None:
    """The service, which is confined, asks for power through the socket, and systemd runs the program as root."""
    wait_off(cluster)
    before = cluster.as_root(HEAD, f"cat {HANDOVER}")
    found = json.loads(before)
    local, own = found["power"]["channel"], "/usr/local/sbin/site-power"
    found["power"]["channel"] = {"platform": "hosts", "address": "/run/trainyard-power.sock", "command": own}

    def use(text: str) -> None:
        write = f"cat >{HANDOVER} <<'END'\n{text}\nEND\n/usr/local/lib/trainyard/stages/80-watch 2>&1 || true"
        cluster.as_root(HEAD, f"{write}\nsystemctl restart trainyard-repair.service")

    cluster.as_root(HEAD, f"cat >/root/channel.json <<'END'\n{json.dumps(local)}\nEND")
    cluster.as_root(HEAD, f"cat >{own} <<'END'\n{POWER_PROGRAM}\nEND\nchmod 0755 {own}")
    use(json.dumps(found))
    cluster.as_root(HEAD, "systemctl start trainyard-power.socket")
    try:
        job = submit(cluster, 1)
        wait_completed(cluster, job)
        (node,) = on(cluster)
        wait_off(cluster)
        calls = cluster.as_root(HEAD, "cat /root/power.log").splitlines()
        address = next(row["private_ip"] for row in cluster.yard_json("nodes") if row["name"] == node)
        assert {f"{verb} {node} {address}" for verb in ("status", "on", "off")} <= set(calls)
        connect = 'import socket; socket.socket(socket.AF_UNIX).connect("/run/trainyard-power.sock")'
        ask = f"python3 -c '{connect}' 2>&1 || true"
        assert "PermissionError" in cluster.on(HEAD, ask)
        assert "PermissionError" in cluster.on(
            HEAD, f"sudo setpriv --reuid=trainer --clear-groups --regid=trainer {ask}"
        )
        # A program that others can change is not run.
        cluster.as_root(HEAD, f"chmod 0777 {own}; : >/root/power.log")
        journal = "journalctl -u trainyard-repair.service --since=-2min -o cat"
        wait_until(
            "the refusal", 100, lambda: "can be changed by others than root" in cluster.as_root(HEAD, journal), 5
        )
        assert cluster.as_root(HEAD, "cat /root/power.log") == ""
    finally:
        use(before)
