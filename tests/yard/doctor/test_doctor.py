"""The checks in `yard doctor` with recorded probe output, the probes, and the SSH sessions with a fake ssh."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.outputs import Cluster, Transport
from yard.doctor import findings
from yard.doctor.checks import CHECKS, explained, judge, report
from yard.doctor.collect import probe_names, probe_script
from yard.doctor.findings import Examined, HostProblem, HostReport, peer_lines
from yard.doctor.gpu_checks import nccl_facts

HEAD, FIRST, SECOND = "yard-head", "yard-gpu-0", "yard-gpu-1"
BOOT = "8b169027-b633-4019-9fb9-af6189d6cf7d"
READY = json.dumps({"node": "x", "boot_id": BOOT, "state": "ready", "stage": ""})
RUNNING = json.dumps({"node": "x", "boot_id": BOOT, "state": "running", "stage": "70-slurm"})
NFS = "rw,noatime,vers=4.2,rsize=131072,wsize=131072,namlen=255,hard,proto=tcp,nconnect=4,timeo=600,retrans=2"
CHRONY = "clock\tchrony\t0.000012\tNormal"

Lines = dict[str, list[str]]
PORT = "infiniband\tmlx5_ib0/1\t4: ACTIVE\t400 Gb/sec (4X NDR)\tInfiniBand"
ROW = "topology\tGPU0\tX NV18"
RAN = "health\tran"
REAL_GPUS = [
    "driver\tversion\t580.159",
    "driver\tdirect\tnvidia-peermem",
    ROW,
    "topology\tGPU1\tNV18 X",
    PORT,
    "infiniband\tmlx5_an0/1\t1: DOWN\t40 Gb/sec (4X QDR)\tEthernet",
]
"""Lines that a worker with an RDMA card and GPUs connected through NVSwitch also prints."""

IDLE, DOWN = "idle\tnone\tUnknown\tUnknown", "down*\tNot responding\tslurm\t2026-11-24T03:00:00"
"""A node's state, reason, author and time in the rows of the probe `queue`."""


def healthy() -> Lines:
    """Return the output of three healthy hosts, recorded on real hosts except for the systemd and NFS lines."""
    addresses = {HEAD: "10.77.0.4", FIRST: "10.77.2.1", SECOND: "10.77.2.2"}
    lines: Lines = {}
    for number, (host, address) in enumerate(addresses.items()):
        others = {name: ip for name, ip in addresses.items() if name != host}
        units = ("nfs-server", "mariadb", "slurmdbd", "slurmctld") if host == HEAD else ("slurmd",)
        lines[host] = [
            f"status\tboot_id\t{BOOT}",
            f"status\tjson\t{READY}",
            *(f"services\t{unit}\tactive" for unit in ("munge", "chrony", "ssh", *units)),
            *(f"names\t{name}\t{ip}" for name, ip in addresses.items()),
            "routes\tfabric\teth0",
            *(f"routes\t{ip}\teth0\t{address}" for ip in others.values()),
            f"tcp\tport\t4000{number}",
            *(f"tcp\t{name}\t0\ttrainyard" for name in others),
            f"munge\tcredential\tMUNGE:{host}:",
            "munge\tself\tSuccess (0)",
            *(f"munge\t{name}\tSuccess (0)" for name in others if HEAD in {host, name}),
            "nfs\twrite\t0\t",
            *(f"nfs\t{name}\t{name}" for name in addresses),
            CHRONY,
            f"clock\tnow\t1795246299.70{number}",
            "shm\t495000\t990000",
            RAN,
            "software\tpython\t3.13.5",
            f"software\ttorch\t{'absent' if host == HEAD else '2.6.0'}",
            f"software\tnccl\t{'absent' if host == HEAD else '2.28.9'}",
            "interfaces\tNCCL_SOCKET_IFNAME\t=eth0",
            "interfaces\tGLOO_SOCKET_IFNAME\teth0",
            f"interfaces\tdevice\teth0\t{address}",
            "interfaces\tdevice\tdocker0\t172.17.0.1",
            "settings\tfabric\tNCCL_IB_DISABLE\t1",
            "settings\tfile\t/etc/nccl.conf\tNCCL_IB_DISABLE\t1",
            "software\tslurm\tslurm-wlm 24.11.5",
        ]
        if host == HEAD:
            lines[host] += [f"queue\t{name}\t{IDLE}" for name in others]
            lines[host] += [f"memlock\t{name}\tunlimited" for name in others]
        else:
            lines[host] += [*REAL_GPUS, "nccl\tnetwork\tIBext_v8", "nccl\tjob\tallreduce-1"]
            facts = {"wanted": "docker", "docker": "active", "member": "yes", "toolkit": "yes"}
            lines[host] += [f"containers\t{key}\t{value}" for key, value in facts.items()]
            lines[host] += [f"mounts\texpected\t4.2\t{HEAD}"]
            lines[host] += [f"mounts\t{path}\tnfs4\t{NFS}" for path in ("/home", "/shared")]
    return lines


FAULTS: dict[str, list[tuple[str, ...]]] = {
    "status": [
        (FIRST, f"json\t{READY}", f"json\t{RUNNING}", "running, stage 70-slurm"),
        (FIRST, f"boot_id\t{BOOT}", f"boot_id\t{BOOT[::-1]}", "not started since the last boot"),
        (HEAD, f"json\t{READY}", "", "not started since the last boot"),
    ],
    "services": [(FIRST, "slurmd\tactive", "slurmd\tfailed", "slurmd is failed")],
    "names": [
        (SECOND, f"{SECOND}\t10.77.2.2", f"{SECOND}\t127.0.1.1", "resolves to 127.0.1.1"),
        (HEAD, f"{FIRST}\t10.77.2.1", "", f"{FIRST} resolves to no address"),
    ],
    "routes": [
        (FIRST, "10.77.2.2\teth0\t10.77.2.1", "10.77.2.2\tdocker0\t172.17.0.1", "uses docker0"),
        (FIRST, "10.77.0.4\teth0\t10.77.2.1", "", "has no route"),
        (FIRST, "fabric\teth0", "fabric\teth1", "expected eth1"),
    ],
    "tcp": [
        (FIRST, f"{SECOND}\t0\ttrainyard", f"{SECOND}\t124\tno answer within 8 s", f"of {SECOND}: no"),
        (SECOND, f"{HEAD}\t0\ttrainyard", "", "no port was reported"),
    ],
    "munge": [
        (HEAD, f"{FIRST}\tSuccess (0)", f"{FIRST}\tunmunge: Error: Invalid credential", "Invalid", FIRST),
        (SECOND, f"{HEAD}\tSuccess (0)", f"{HEAD}\tExpired credential (15)", "Expired"),
        (FIRST, "self\tSuccess (0)", "self\tmunge: Error: Failed to access", "munge does not work"),
    ],
    "nfs": [
        (SECOND, "write\t0\t", "write\t1\tbash: line 1: /shared/x: Permission denied", "cannot write"),
        (FIRST, f"{SECOND}\t{SECOND}", f"{SECOND}\t", f"cannot read a file that {SECOND} wrote"),
    ],
    "mounts": [
        (FIRST, f"/shared\tnfs4\t{NFS}", "", "/shared is not mounted"),
        (SECOND, f"/home\tnfs4\t{NFS}", "/home\tnfs4\trw,soft,vers=3", "rw,soft,vers=3"),
        (SECOND, f"/home\tnfs4\t{NFS}", "/home\text4\trw", "/home is not mounted"),
    ],
    "clock": [
        (FIRST, "chrony\t0.000012\tNormal", "chrony\t\t", "not synchronized"),
        (FIRST, "chrony\t0.000012\tNormal", "chrony\t0.0\tNot synchronised", "not synchronized"),
        (SECOND, "now\t1795246299.702", "now\t1795246699.702", "head's clock by +400 s"),
    ],
    "nccl": [(FIRST, "network\tIBext_v8", "network\tSocket", "NCCL used the network 'Socket'")],
    "shm": [(FIRST, "495000\t990000", "65536\t990000", "is 64 MiB, but the host has 966 MiB")],
    "health": [(SECOND, "ran", "", "the health checks did not run")],
    "software": [
        (HEAD, "slurm\tslurm-wlm 24.11.5", "slurm\tslurm-wlm 22.05.8", "is slurm-wlm 22.05.8"),
        (SECOND, "torch\t2.6.0", "torch\tabsent", "torch is absent; other hosts have 2"),
    ],
    "interfaces": [
        (FIRST, "NCCL_SOCKET_IFNAME\t=eth0", "NCCL_SOCKET_IFNAME\teth", "NCCL_SOCKET_IFNAME is 'eth', not '=eth0'"),
        (FIRST, "GLOO_SOCKET_IFNAME\teth0", "GLOO_SOCKET_IFNAME\tdocker0", "is 'docker0', not 'eth0'"),
        (SECOND, "NCCL_SOCKET_IFNAME\t=eth0", "device\tveth12\t10.0.3.1", "not '=eth0'; other interfaces: veth12"),
        (SECOND, "device\teth0\t10.77.2.2", "device\teth0\t10.0.2.15", "no interface has the private address"),
    ],
    "settings": [
        (FIRST, "file\t/etc/nccl.conf\tNCCL_IB_DISABLE\t1", "file\t/etc/nccl.conf\tNCCL_IB_DISABLE\t0",
         "/etc/nccl.conf sets NCCL_IB_DISABLE=0, but the cluster sets NCCL_IB_DISABLE=1"),
    ],
    "driver": [
        (FIRST, "direct\tnvidia-peermem", "", "RDMA cards cannot access GPU memory"),
        (SECOND, "version\t580.159", "version\t570.1", "driver is 570.1; other hosts have 580.159"),
    ],
    "topology": [(SECOND, "GPU0\tX NV18", "GPU0\tX SYS", "'GPU0 X SYS', not 'GPU0 X NV18'")],
    "infiniband": [
        (SECOND, "mlx5_ib0/1\t4: ACTIVE\t400 Gb/sec (4X NDR)", "mlx5_ib0/1\t4: ACTIVE\t200 Gb/sec (2X NDR)",
         "rates are 200 Gb/sec"),
    ],
    "containers": [
        (FIRST, "docker\tactive", "docker\tfailed", "docker is failed"),
        (SECOND, "docker\tactive", "", "docker is absent"),
        (FIRST, "member\tyes", "", "the job user is not in group docker"),
        (FIRST, "wanted\tdocker", "wanted\tenroot", "enroot is not installed"),
    ],
    "memlock": [(HEAD, f"{FIRST}\tunlimited", f"{FIRST}\t8192", "8192 KiB", FIRST)],
    "queue": [
        (HEAD, f"{FIRST}\t{IDLE}", f"{FIRST}\t{DOWN}", "state is down*", FIRST),
        (HEAD, f"{SECOND}\t{IDLE}", "", "unknown to Slurm", SECOND),
    ],
}  # fmt: skip
"""Cases by check: the host, a line that it prints if it is healthy, the line that replaces it if it is faulty, a part
of the problem, and the host with the problem if it is another one. Lines are without the name of the check."""


def with_nodes(cluster: Cluster, **changes: Any) -> Cluster:
    return replace(cluster, nodes=tuple(replace(node, **changes) for node in cluster.nodes))


@pytest.fixture
def local(local: Cluster) -> Cluster:
    """A cluster with two workers that have an InfiniBand fabric."""
    return with_nodes(local, fabric="infiniband-ndr")


def parse_report(name: str, lines: Iterable[str]) -> HostReport:
    report = HostReport(name=name)
    for line in lines:
        report.add(line)
    return report


def examined(cluster: Cluster, lines: Mapping[str, Sequence[str]]) -> Examined:
    return Examined(
        cluster=cluster, reports={name: parse_report(name, output) for name, output in lines.items()}, stack="local"
    )


def problems(probe: str, cluster: Cluster, lines: Mapping[str, Sequence[str]]) -> list[HostProblem]:
    return list(CHECKS[probe](examined(cluster, lines)))


def edit(lines: Lines, host: str, old: str, new: str) -> None:
    text = "\n".join(lines[host])
    assert old in text, "the case must replace the output of a healthy host"
    lines[host] = [line for line in text.replace(old, new).split("\n") if line]


def test_every_probe_has_a_check_and_test_cases() -> None:
    assert set(probe_names()) | {"reach"} == set(CHECKS)
    assert set(probe_names()) == set(FAULTS)


@pytest.mark.parametrize("probe", sorted(CHECKS))
def test_healthy_hosts_pass(probe: str, local: Cluster) -> None:
    assert problems(probe, local, healthy()) == []


def test_every_problem_text_is_used_by_a_check() -> None:
    files = Path(findings.__file__).parent
    used = set(re.findall(r'"([a-z-]+)"', "".join(file.read_text() for file in files.glob("*.py"))))
    texts = yaml.safe_load((files / "problems.yaml").read_text())
    assert set(texts) <= used
    assert {tuple(text) for text in texts.values()} == {("what", "cause", "fix")}


CASES = [
    (probe, *case[:4], case[-1] if len(case) > 4 else case[0]) for probe, cases in FAULTS.items() for case in cases
]


@pytest.mark.parametrize(("probe", "host", "line", "replacement", "text", "reported"), CASES)
def test_a_fault_is_reported_with_host_cause_and_fix(  # noqa: PLR0913, PLR0917  (the table's columns)
    probe: str, host: str, line: str, replacement: str, text: str, reported: str, local: Cluster
) -> None:
    lines = healthy()
    edit(lines, host, f"{probe}\t{line}", replacement and f"{probe}\t{replacement}")
    found = problems(probe, local, lines)
    assert {problem.node for problem in found} == {reported}
    assert text in found[0].what
    assert all(problem.cause and problem.fix for problem in found)


OTHER_PORT = "settings\tfabric\tNCCL_IB_HCA\t=mlx5_ib0\ninfiniband\tmlx5_1/1\t1: DOWN\t40 Gb/sec (4X QDR)\tInfiniBand"


@pytest.mark.parametrize(
    ("probe", "old", "new", "changes"),
    [
        ("clock", CHRONY, "clock\tsynchronised\tyes", {}),
        ("driver", "nvidia-peermem", "dma-buf", {}),
        ("infiniband", PORT, f"{PORT}\n{OTHER_PORT}", {}),  # collectives do not use this port
        ("mounts", "mounts\t/home\t", "mounts\t/home/trainer\t", {"home_path": "/home/trainer"}),
        ("containers", "containers\ttoolkit\tyes", "", {}),  # the nodes have no real GPUs
    ],
)
def test_other_settings_of_healthy_hosts_pass(
    probe: str, old: str, new: str, changes: dict[str, Any], local: Cluster
) -> None:
    lines = healthy()
    for host in (FIRST, SECOND):
        edit(lines, host, old, new)
    assert problems(probe, replace(local, **changes), lines) == []


def test_texts_of_a_health_check_come_from_the_host(local: Cluster) -> None:
    lines = healthy()
    lines[SECOND].append("health\tgpu-count\tfatal\t1 of 2 GPUs work\ta GPU is lost\treboot {host}")
    assert judge(examined(local, lines))["health"] == [
        HostProblem(SECOND, "gpu-count: 1 of 2 GPUs work", "a GPU is lost", f"reboot {SECOND}")
    ]


def test_a_wrong_munge_key_is_reported_as_the_cause(local: Cluster) -> None:
    lines = healthy()
    for host, other in ((HEAD, FIRST), (FIRST, HEAD)):
        edit(lines, host, f"munge\t{other}\tSuccess (0)", f"munge\t{other}\tunmunge: Error: Invalid credential")
    edit(lines, HEAD, f"queue\t{FIRST}\t{IDLE}", f"queue\t{FIRST}\t{DOWN}")
    found = judge(examined(local, lines))
    [munge] = found["munge"]
    assert munge.node == FIRST
    assert munge.cause.startswith(f"the munge key on {FIRST} differs from the key on the head")
    assert "trainyard-bootstrap" in munge.fix
    assert [name for name, listed in found.items() if listed] == ["munge"]
    assert explained(examined(local, lines), found) == {"queue"}
    text = report(found, 3, 1.0, {}, {"queue"})
    assert "FAIL  queue: a consequence of the problems of the other checks\n" in text
    assert "ok    names\n" in text


STOPPED = {
    "munge\tself\tSuccess (0)": "munge\tself\tunmunge: Error: Failed to access socket",
    "services\tmunge\tactive": "services\tmunge\tinactive",
    "services\tslurmd\tactive": "services\tslurmd\tfailed",
    RAN: "health\tmunge\tfatal\tmunge does not work\tcause\tfix",
}
"""Changed lines of a host on which munge was stopped."""


@pytest.mark.parametrize(
    "state", [DOWN, "idle*\tnone\tUnknown\tUnknown", "drained\tTY:slurmd: x\troot\t2026-11-24T03:00:00"]
)
@pytest.mark.parametrize("host", [HEAD, FIRST])
def test_a_stopped_munge_gives_one_message(host: str, state: str, local: Cluster) -> None:
    lines = healthy()
    lines[host] = [STOPPED.get(line, line) for line in lines[host]] + [RAN]
    for name in (FIRST, SECOND) if host == HEAD else (host,):
        edit(lines, HEAD, f"queue\t{name}\t{IDLE}", f"queue\t{name}\t{state}")
        if host == HEAD:
            edit(lines, HEAD, f"munge\t{name}\tSuccess (0)", f"munge\t{name}\tError")
    found = [problem for listed in judge(examined(local, lines)).values() for problem in listed]
    assert [(problem.node, problem.what.partition(":")[0]) for problem in found] == [(host, "munge does not work")]


def test_a_stopped_slurmd_gives_one_message(local: Cluster) -> None:
    lines = healthy()
    edit(lines, FIRST, "services\tslurmd\tactive", "services\tslurmd\tinactive")
    edit(lines, FIRST, "software\tslurm\tslurm-wlm 24.11.5", "software\tslurm\t")
    found = [problem for listed in judge(examined(local, lines)).values() for problem in listed]
    assert [(problem.node, problem.what) for problem in found] == [(FIRST, "slurmd is inactive")]


def test_a_drain_by_a_person_is_reported_beside_a_fault(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST] = [STOPPED.get(line, line) for line in lines[FIRST]] + [RAN]
    edit(lines, HEAD, f"queue\t{FIRST}\t{IDLE}", f"queue\t{FIRST}\tdrained\tnew disk\troot\t2026-11-24T03:00:00")
    [problem] = judge(examined(local, lines))["queue"]
    assert problem.cause == "new disk (set by root, 2026-11-24T03:00:00)"


def test_an_unreachable_host_causes_one_problem(local: Cluster) -> None:
    reports = {**examined(local, healthy()).reports, SECOND: HostReport(name=SECOND, error="Connection refused")}
    found = judge(Examined(cluster=local, reports=reports, stack="local"))
    assert [name for name, listed in found.items() if listed] == ["reach"]
    assert found["reach"][0].cause == "its machine has stopped"
    assert found["reach"][0].fix == "run `pulumi up -s local --refresh`"


def test_a_silent_host_may_have_stopped(local: Cluster) -> None:
    reports = {**examined(local, healthy()).reports, SECOND: HostReport(name=SECOND, error="Connection timed out")}
    [found] = judge(Examined(cluster=local, reports=reports, stack="local"))["reach"]
    assert found.cause.endswith("Connection timed out")
    assert found.fix.startswith("start the host with `pulumi up -s local --refresh` if it has stopped")
    assert found.fix.endswith("; `yard heal` shows the next repair step")


def test_hosts_get_only_the_peer_facts_they_need() -> None:
    reports = {name: parse_report(name, lines) for name, lines in healthy().items()}
    of_head = [f"tcp {HEAD} 40000", f"nfs {HEAD} written", f"munge {HEAD} MUNGE:{HEAD}:"]
    of_second = [f"tcp {SECOND} 40002", f"nfs {SECOND} written"]
    assert peer_lines(FIRST, HEAD, reports) == [f"peer {fact}" for fact in (*of_head, *of_second)]
    assert f"peer munge {SECOND} MUNGE:{SECOND}:" in peer_lines(HEAD, HEAD, reports)


def test_the_probe_script_is_complete_and_valid(local: Cluster) -> None:
    script = probe_script(local, FIRST, "abcd")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert script.startswith(f"self={FIRST}\nself_ip=10.77.2.1\nhead={HEAD}\n")
    assert all(f"{probe}_facts()" in script for probe in probe_names())
    # The script is passed to bash as one argument, which Linux limits to 128 KiB (MAX_ARG_STRLEN).
    assert len(script) < 128 * 1024


def test_the_report_has_host_problem_cause_and_fix() -> None:
    finding = HostProblem(FIRST, "problem", "why", "how")
    text = report({"names": [finding], "tcp": []}, 3, 2.4, {"tcp": ["a fact"]})
    assert f"FAIL  names\n      {FIRST}: problem\n        cause: why\n        fix:   how\n" in text
    assert text.endswith("ok    tcp\n      a fact\n3 hosts, 2 checks, 2 s: 1 problem\n")
    advice = "begin with these fixes: `yard nodes` and `yard heal` can show the same problem a minute later\n"
    assert report({"names": [finding], "queue": []}, 3, 2.4, {}).endswith(f": 1 problem\n{advice}")
    assert report({"names": [], "queue": []}, 3, 2.4, {}).endswith(": no problems found\n")


def test_slurm_checks_are_skipped_without_a_scheduler(local: Cluster) -> None:
    plain = replace(local, scheduler="none")
    words = ("munge", "slurm", "mariadb", "queue", "memlock")
    lines = {
        host: [line for line in output if not any(word in line for word in words)] for host, output in healthy().items()
    }
    for host in (FIRST, SECOND):
        lines[host].append(f"memlock\t{host}\tunlimited")
    found = judge(examined(plain, lines))
    assert not any(found.values())
    assert not {"munge", "queue"} & set(found)
    assert {"munge", "queue"} <= set(judge(examined(local, lines)))
    assert "\nscheduler=none\n" in probe_script(plain, FIRST, "abcd")


def test_without_slurm_the_memlock_of_logins_is_checked(local: Cluster) -> None:
    lines = {FIRST: [f"memlock\t{FIRST}\t8192"]}
    plain = replace(local, scheduler="none")
    [found] = problems("memlock", plain, lines)
    assert (found.node, "limits.d" in found.fix) == (FIRST, True)
    assert not problems("memlock", with_nodes(plain, fabric="ethernet"), lines)


def test_topology_is_compared_within_a_group(local: Cluster) -> None:
    lines = {FIRST: [ROW], SECOND: ["topology\tGPU0\tX SYS"]}
    assert len(problems("topology", local, lines)) == 1
    other = replace(local, nodes=(local.nodes[0], replace(local.nodes[1], group="other")))
    assert not problems("topology", other, lines)
    # A node without rows, whose nvidia-smi has failed, is no reference. The health checks report it.
    assert not problems("topology", local, lines | {FIRST: []})


def test_the_toolkit_and_the_plugin_are_required_if_used(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST].remove("containers\ttoolkit\tyes")
    [found] = problems("containers", with_nodes(local, gpu_type="a100"), lines)
    assert (found.node, found.what) == (FIRST, "the NVIDIA container toolkit is missing")
    # Without the plugin, NCCL uses plain TCP and reports no error.
    transport = {"gpu": Transport(library_path="/var/lib/tcpxo/lib64", mounts=())}
    lines[FIRST] += ["containers\tplugin\t/var/lib/tcpxo/lib64"]
    [found] = problems("containers", replace(with_nodes(local, fabric="gpudirect-tcpxo"), transport=transport), lines)
    assert found.node == SECOND
    assert found.what == "the NCCL plugin for gpudirect-tcpxo is missing in /var/lib/tcpxo/lib64"


def test_roce_ports_have_an_ethernet_link_layer(local: Cluster) -> None:
    lines = healthy()
    for name in (FIRST, SECOND):
        edit(lines, name, "NDR)\tInfiniBand", "NDR)\tEthernet\nsettings\tfabric\tNCCL_IB_HCA\t=mlx5_ib0")
    roce = with_nodes(local, fabric="roce")
    assert problems("infiniband", roce, lines) == []
    edit(lines, SECOND, "400 Gb/sec", "200 Gb/sec")
    assert [problem.node for problem in problems("infiniband", roce, lines)] == [SECOND]


NCCL_LOG = [
    "nccl\tjob\tallreduce-1",
    "nccl\tversion\t2.27.5+cuda12.9",
    "nccl\tnetwork\tIB",
    "nccl\ttopology\t/opt/a.xml",
]


USED = {"ethernet": "Socket", "infiniband-ndr": "IB", "roce": "IB", "gvnic": "FastSocket"}
USED |= {"gpudirect-tcpx": "GPUDirectTCPX_v7", "gpudirect-tcpxo": "FasTrak", "gpudirect-gib": "gIB"}
"""The network in NCCL's log by fabric."""


@pytest.mark.parametrize("network", sorted({*USED.values()}))
@pytest.mark.parametrize("fabric", USED)
def test_the_network_in_the_log_belongs_to_the_fabric(local: Cluster, fabric: str, network: str) -> None:
    lines = {FIRST: [line.replace("\tIB", f"\t{network}") for line in NCCL_LOG], SECOND: ["nccl\tlibraries\t"]}
    found = problems("nccl", with_nodes(local, fabric=fabric), lines)
    assert [problem.node for problem in found] == ([] if network == USED[fabric] else [FIRST])
    assert all(f"'{network}', which does not belong to the fabric {fabric} (job allreduce-1)" in p.what for p in found)


def test_the_topology_file_in_the_log_is_that_of_the_fabric(local: Cluster) -> None:
    lines = {FIRST: NCCL_LOG, SECOND: [line for line in NCCL_LOG if "topology" not in line]}
    [found] = problems("nccl", replace(local, env={"gpu": {"NCCL_TOPO_FILE": "/opt/a.xml"}}), lines)
    assert (found.node, "NCCL used no file as topology file, not /opt/a.xml" in found.what) == (SECOND, True)
    assert len(problems("nccl", replace(local, env={"gpu": {"NCCL_TOPO_FILE": "/b"}}), lines)) == 2


def test_equal_facts_of_nccl_share_a_line(local: Cluster) -> None:
    facts = nccl_facts(examined(local, {HEAD: NCCL_LOG, FIRST: NCCL_LOG, SECOND: NCCL_LOG}))
    shown = "NCCL 2.27.5+cuda12.9, network IB, topology /opt/a.xml (job allreduce-1)"
    assert facts == [f"{FIRST}, {SECOND}: {shown}"]
    library = "nccl\tlibraries\t/shared/envs/torch-1/libnccl.so.2"
    [fact] = nccl_facts(examined(local, {FIRST: [*NCCL_LOG, library], SECOND: ["nccl\tlibraries\t"]}))
    assert "libraries of running ranks /shared/envs/torch-1/libnccl.so.2 (job" in fact
