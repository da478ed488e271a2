"""The checks in `yard doctor` with recorded probe output, and the SSH sessions with a fake ssh."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.yard.conftest import FakeStack, MakeProgram
from tests.yard.doctor.doctor_samples import CHRONY, FAULTS, FIRST, HEAD, PORT, RAN, ROW, SECOND, Lines, healthy
from trainyard.outputs import Cluster, Transport
from yard.doctor import findings
from yard.doctor.checks import CHECKS, judge, report
from yard.doctor.collect import examine, probe_names, probe_script
from yard.doctor.findings import Examined, HostProblem, HostReport, peer_lines
from yard.doctor.gpu_checks import nccl_facts
from yard.stack.load import load_stack
from yard.stack.remote import Remote


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
    return Examined(cluster=cluster, reports={name: parse_report(name, output) for name, output in lines.items()})


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
    edit(lines, HEAD, f"queue\t{FIRST}\tidle\tnone", f"queue\t{FIRST}\tdown*\tNot responding")
    found = judge(examined(local, lines))
    [munge] = found["munge"]
    assert munge.node == FIRST
    assert munge.cause.startswith(f"the munge key on {FIRST} differs from the key on the head")
    assert "trainyard-bootstrap" in munge.fix
    assert [name for name, listed in found.items() if listed] == ["munge"]


STOPPED = {
    "munge\tself\tSuccess (0)": "munge\tself\tunmunge: Error: Failed to access socket",
    "services\tmunge\tactive": "services\tmunge\tinactive",
    "services\tslurmd\tactive": "services\tslurmd\tfailed",
    RAN: "health\tmunge\tfatal\tmunge does not work\tcause\tfix",
}
"""Changed lines of a host on which munge was stopped."""


@pytest.mark.parametrize("host", [HEAD, FIRST])
def test_a_stopped_munge_gives_one_message(host: str, local: Cluster) -> None:
    lines = healthy()
    lines[host] = [STOPPED.get(line, line) for line in lines[host]] + [RAN]
    for name in (FIRST, SECOND) if host == HEAD else (host,):
        edit(lines, HEAD, f"queue\t{name}\tidle\tnone", f"queue\t{name}\tdown*\tNot responding")
        if host == HEAD:
            edit(lines, HEAD, f"munge\t{name}\tSuccess (0)", f"munge\t{name}\tError")
    found = [problem for listed in judge(examined(local, lines)).values() for problem in listed]
    assert [(problem.node, problem.what.partition(":")[0]) for problem in found] == [(host, "munge does not work")]


def test_a_drain_by_a_person_is_reported_beside_a_fault(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST] = [STOPPED.get(line, line) for line in lines[FIRST]] + [RAN]
    edit(lines, HEAD, f"queue\t{FIRST}\tidle\tnone", f"queue\t{FIRST}\tdrained\tnew disk")
    assert [problem.cause for problem in judge(examined(local, lines))["queue"]] == ["new disk"]


def test_an_unreachable_host_causes_one_problem(local: Cluster) -> None:
    reports = {**examined(local, healthy()).reports, SECOND: HostReport(name=SECOND, error="Connection refused")}
    found = judge(Examined(cluster=local, reports=reports))
    assert [name for name, listed in found.items() if listed] == ["reach"]
    assert found["reach"][0].cause.endswith("Connection refused")


def test_hosts_get_only_the_peer_facts_they_need() -> None:
    reports = {name: parse_report(name, lines) for name, lines in healthy().items()}
    assert peer_lines(FIRST, HEAD, reports) == [
        f"peer tcp {HEAD} 40000",
        f"peer nfs {HEAD} written",
        f"peer munge {HEAD} MUNGE:{HEAD}:",
        f"peer tcp {SECOND} 40002",
        f"peer nfs {SECOND} written",
    ]
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
    assert report({"names": [finding], "tcp": []}, 3, 2.4, {"tcp": ["a fact"]}).splitlines() == [
        "FAIL  names",
        f"      {FIRST}: problem",
        "        cause: why",
        "        fix:   how",
        "ok    tcp",
        "      a fact",
        "3 hosts, 2 checks, 2 s: 1 problem",
    ]


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


@pytest.mark.parametrize(
    ("fabric", "network", "fits"),
    [
        ("ethernet", "Socket", True),
        ("infiniband-ndr", "IBext_v8", True),
        ("infiniband-ndr", "Socket", False),
        ("gvnic", "FastSocket", True),
        ("gvnic", "Socket", False),
        ("gpudirect-tcpx", "GPUDirectTCPX_v7", True),
        ("gpudirect-tcpxo", "GPUDirectTCPX_v7", False),
        ("gpudirect-tcpxo", "FasTrak", True),
        ("gpudirect-gib", "gIB", True),
        ("roce", "IB", True),
    ],
)
def test_the_network_in_the_log_belongs_to_the_fabric(local: Cluster, fabric: str, network: str, fits: bool) -> None:
    lines = {FIRST: [line.replace("\tIB", f"\t{network}") for line in NCCL_LOG], SECOND: ["nccl\tlibraries\t"]}
    found = problems("nccl", with_nodes(local, fabric=fabric), lines)
    assert [problem.node for problem in found] == ([] if fits else [FIRST])
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


SCRIPT = r"""
printf 'shm\t2\nnfs\twrite\t0\t\n'
echo ready
while read -r line && [[ $line != go ]]; do printf 'seen\t%s\n' "$line"; done
echo done
read -r _
touch "{folder}/left-$$"
"""


def test_hosts_exchange_facts_between_the_phases(
    stack: FakeStack, program: MakeProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = SCRIPT.replace("{folder}", str(tmp_path))
    monkeypatch.setattr("yard.doctor.collect.probe_script", lambda cluster, name, nonce: script)
    program("sudo", '[[ $1 == -n ]] && exec "${@:2}"')
    program("ssh", '[[ $* != *yard-gpu-1* ]] || { echo "Permission denied" >&2; exit 255; }; exec bash -c "${!#}"')
    reports = examine(Remote(load_stack("local")))
    assert reports[FIRST].of("shm") == [("2",)]
    assert reports[FIRST].of("seen") == [(f"peer nfs {HEAD} written",)]
    assert [report.error for report in reports.values()] == ["", "", "Permission denied"]
    assert len(list(tmp_path.glob("left-*"))) == 2, "the two reachable hosts remove their files at the end"
