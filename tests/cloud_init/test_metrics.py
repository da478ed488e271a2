"""The collector of a node's metrics, the cluster's metrics on the head, and the stage 82-monitoring."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from metrics import collector
from metrics.collector import FIGURES, HEALTH, NO_NVLINK, NVLINK, OLD_SECONDS, OUTPUT, QUERY, collect, nvlink_output
from metrics.page import METRICS, Page, write
from repair.figures import FILE, INTERVAL_SECONDS, Figures
from repair.figures import JOBS as LISTED
from repair.service import Service, parse_nodes, read_site

from tests.cloud_init.stage_sandbox import STAGES, Sandbox
from trainyard.faults import ON_TIMES
from trainyard.idle_gpus import FOLDER

H100 = (
    "{0}, GPU-aaadde31-{0}, NVIDIA H100 80GB HBM3, 00000000:00:0{1}.0, 98, 71000, 81559, 672.21, 700.00, 55, {2}, "
    "1845, 1980, 0, 3, No, Yes, {3}\n"
)
"""The output of nvidia-smi with QUERY on an H100 (driver 580.159.04, 2026-11-27), with other numbers."""
SMI = H100.format(0, 6, 78, "0x0000000000000004") + H100.format(1, 7, "[N/A]", "0x0000000000000060")
NOW = 1_795_791_775.0
UNIT = STAGES.parents[4] / "etc/systemd/system/trainyard-collector.service"


def node(root: Path) -> Path:
    files = {
        "proc/stat": "cpu  100 0 50 900 5 0 1 0 0 0\ncpu0 50 0 25 450\ncpu1 50 0 25 450\n",
        HEALTH: json.dumps({"time": NOW - 10, "results": {"gpu-xid": ["fail", "Xid 79"], "munge": ["pass", ""],
                                                           "nfs-hang": ["unknown", "x"]}}),
        f"{FOLDER}/12": "0\n",
        f"{FOLDER}/13": "1\n",
        # Slurm's numbers are those of the device files.
        "proc/driver/nvidia/gpus/0000:00:06.0/information": "Model: \t NVIDIA\nDevice Minor: \t 1\n",
        "proc/driver/nvidia/gpus/0000:00:07.0/information": "Model: \t NVIDIA\nDevice Minor: \t 0\n",
    }  # fmt: skip
    for path, text in files.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)
    return root


def test_a_gpu_belongs_to_its_newest_job(tmp_path: Path) -> None:
    """The epilog of job 9 has not run."""
    made = node(tmp_path)
    (made / f"{FOLDER}/9".lstrip("/")).write_text("0,1\n")
    for job, when in (("9", 1), ("12", 3), ("13", 2)):
        os.utime(made / FOLDER.lstrip("/") / job, (when, when))
    lines = [line for line in collect(made, SMI, NOW).splitlines() if line.startswith("trainyard_gpu_job")]
    assert lines == ['trainyard_gpu_job{gpu="0",slurm_job="13"} 1', 'trainyard_gpu_job{gpu="1",slurm_job="12"} 1']


def test_a_node_has_metrics_of_each_gpu(tmp_path: Path) -> None:
    lines = collect(node(tmp_path), SMI, NOW).splitlines()
    expected = [
        'trainyard_gpu_info{gpu="0",uuid="GPU-aaadde31-0",model="NVIDIA H100 80GB HBM3"} 1',
        'trainyard_gpu_utilization_percent{gpu="0"} 98',
        f'trainyard_gpu_memory_used_bytes{{gpu="0"}} {71000 * 2**20}',
        'trainyard_gpu_power_watts{gpu="0"} 672.21',
        'trainyard_gpu_memory_temperature_celsius{gpu="0"} 78',
        'trainyard_gpu_sm_clock_hertz{gpu="0"} 1845000000',
        'trainyard_gpu_ecc_errors_total{gpu="0",kind="uncorrected"} 3',
        'trainyard_gpu_row_remap{gpu="0",kind="failure"} 1',
        'trainyard_gpu_throttled{gpu="0",reason="power_cap"} 1',
        'trainyard_gpu_throttled{gpu="1",reason="hardware_temperature"} 1',
        'trainyard_gpu_throttled{gpu="1",reason="power_cap"} 0',
        'trainyard_gpu_job{gpu="1",slurm_job="12"} 1',
        'trainyard_gpu_job{gpu="0",slurm_job="13"} 1',
        'trainyard_cpu_seconds_total{mode="idle"} 9',
        "trainyard_cpus 2",
        'trainyard_health_check_failed{check="gpu-xid"} 1',
        'trainyard_health_check_failed{check="munge"} 0',
    ]
    assert [line for line in expected if line not in lines] == []
    # The GPU does not support this value, and the check could not be carried out.
    assert not [line for line in lines if ("memory_temperature" in line and 'gpu="1"' in line) or "nfs-hang" in line]


HEAD = "GPU {0}: NVIDIA H100 80GB HBM3 (UUID: GPU-{0}23fdbc-f2ca-d4ef-3a65-9dba53be7167)\n"
DATA = "".join(
    f"{HEAD.format(gpu)}\t Link 0: Data Tx: {gpu} KiB\n\t Link 0: Data Rx: 5 KiB\n\t Link 1: Data Tx: 58739 KiB\n"
    for gpu in (0, 1)
)
ERRORS = "".join(
    f"{HEAD.format(gpu)}\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 0\n\t Link 0: CRC Errors: {gpu}\n\n"
    "\t Link 1: Replay Errors: 0\n\t Link 1: Recovery Errors: N/A\n\t Link 1: CRC Errors: 4\n\n"
    for gpu in (0, 1)
)
"""The output of the calls in NVLINK on H100s (driver 580.159.04, 2026-11-27), with other numbers and fewer links."""


def test_nvlinks_are_added_up(tmp_path: Path) -> None:
    lines = collect(node(tmp_path), SMI, NOW, (DATA, ERRORS)).splitlines()
    assert [line for line in lines if line.startswith("trainyard_gpu_nvlink") and 'gpu="1"' in line] == [
        f'trainyard_gpu_nvlink_bytes_total{{gpu="1",direction="sent"}} {58740 * 1024}',
        f'trainyard_gpu_nvlink_bytes_total{{gpu="1",direction="received"}} {5 * 1024}',
        'trainyard_gpu_nvlink_errors_total{gpu="1",kind="replay"} 0',
        'trainyard_gpu_nvlink_errors_total{gpu="1",kind="recovery"} 0',
        'trainyard_gpu_nvlink_errors_total{gpu="1",kind="crc"} 5',
    ]


def test_nvlink_is_not_queried_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    answers = dict.fromkeys(NVLINK, HEAD.format(0))

    def answer(command: tuple[str, ...], _: float) -> str:
        calls.append(command)
        return answers[command]

    monkeypatch.setattr(collector, "output_of", answer)
    no_links = tmp_path / NO_NVLINK.lstrip("/")
    no_links.parent.mkdir(parents=True)
    assert nvlink_output(tmp_path, "", NOW) == ("", "")
    assert calls == [], "there are no GPUs"
    for _ in range(3):
        assert nvlink_output(tmp_path, SMI, NOW) == ("", "")
    assert calls == [NVLINK[0]], "the first call has shown no link"
    answers |= dict(zip(NVLINK, (DATA, ERRORS), strict=True))
    os.utime(no_links, (NOW - 3601, NOW - 3601))
    assert nvlink_output(tmp_path, SMI, NOW) == (DATA, ERRORS)


def test_xids_are_counted_by_gpu(tmp_path: Path) -> None:
    root = node(tmp_path)
    counts = {"0000:00:07": {"31": 2, "79": 1}, "0001:00:00": {"79": 1}}
    (root / HEALTH.lstrip("/")).write_text(json.dumps({"time": NOW, "results": {}, "xids": counts}))
    expected = [
        'trainyard_gpu_xid_errors_total{gpu="0001:00:00",xid="79"} 1',
        'trainyard_gpu_xid_errors_total{gpu="1",xid="31"} 2',
        'trainyard_gpu_xid_errors_total{gpu="1",xid="79"} 1',
    ]
    # After some Xids, nvidia-smi shows no GPU at all.
    for output in (SMI, ""):
        found = [line for line in collect(root, output, NOW).splitlines() if line.startswith("trainyard_gpu_xid")]
        assert sorted(found) == expected


SCOPE = "0::/system.slice/slurmstepd.scope/job_"


@pytest.mark.parametrize(
    ("name", "cgroup", "expected"),
    [
        ("goodput 0.873", f"{SCOPE}12/step_0/user/task_0", ['trainyard_job_goodput_ratio{slurm_job="12"} 0.873']),
        ("goodput 1.000", f"1:cpu:/\n{SCOPE.replace('slurmstepd', 'yard-a-0_slurmstepd')}12/step_batch",
         ['trainyard_job_goodput_ratio{slurm_job="12"} 1']),
        *((name, f"{SCOPE}12/step_0", []) for name in ("python3", "goodput 1.001", "goodput nan", "goodput 0.5")),
        # A user can create such cgroups.
        ("goodput 0.873", f"0::/user.slice/user-1000.slice/user@1000.service{SCOPE[3:]}12/step_0", []),
        ("goodput 0.873", f"{SCOPE[:-4]}x/job_12/step_0", []),
        ("goodput 0.873", "0::/system.slice/slurmd.service", []),
        ("goodput 0.873", "", []),
    ],
)  # fmt: skip
def test_a_job_tells_only_its_own_goodput(tmp_path: Path, name: str, cgroup: str, expected: list[str]) -> None:
    folder = tmp_path / "proc/4711"
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cgroup").write_text(f"{cgroup}\n")
    found = [line for line in collect(tmp_path, "", NOW).splitlines() if line.startswith("trainyard_job")]
    assert found == expected


@pytest.mark.parametrize("output", ["", "No devices were found\n", "0, GPU-x, too few fields\n"])
def test_a_node_without_gpus_has_no_gpu_metrics(tmp_path: Path, output: str) -> None:
    (tmp_path / "proc").mkdir()
    text = collect(tmp_path, output, NOW)
    assert "trainyard_gpu" not in text
    assert "trainyard_cpus 0" in text


def test_old_files_are_ignored(tmp_path: Path) -> None:
    root, figures = node(tmp_path), tmp_path / FIGURES.lstrip("/")
    figures.parent.mkdir(parents=True)
    figures.write_text("trainyard_nodes 3\n")
    os.utime(figures, (NOW, NOW))
    for now, expected in ((NOW, True), (NOW + OLD_SECONDS + 1, False)):
        text = collect(root, "", now)
        assert ("trainyard_nodes 3" in text, "trainyard_health_check" in text) == (expected, expected)


def test_label_values_are_escaped() -> None:
    page = Page()
    page.add("trainyard_cpus", 1, x='a"b\\c\nd')
    assert page.text.splitlines()[-1] == r'trainyard_cpus{x="a\"b\\c\nd"} 1'
    with pytest.raises(KeyError):
        page.add("trainyard_unknown", 1)


def test_the_exporter_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write(tmp_path / "node.prom", "x 1\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "node.prom").stat().st_mode) == 0o644
    folder = f"RuntimeDirectory={Path(OUTPUT).parent.name}\n"
    assert folder in UNIT.read_text()
    assert f"--collector.textfile.directory={Path(OUTPUT).parent} " in UNIT.with_stem("trainyard-exporter").read_text()
    assert QUERY[0] == "nvidia-smi"


LINE = (
    "NodeName={} Arch=x86_64 State={} BootTime=x CfgTRES=cpu=8,mem=1M,billing=2,gres/gpu=8 AllocTRES={} "
    "Reason={} [root@x]\n"
)
SHOWN = (
    LINE.format("yard-a-0", "MIXED", "cpu=2,gres/gpu=6,gres/gpu:h100=6", "")
    + LINE.format("yard-a-1", "IDLE", "", "")
    + LINE.format("yard-a-2", "IDLE+DRAIN", "", "TY:gpu-xid: Xid 79")
    + LINE.format("yard-a-3", "IDLE+POWERED_DOWN", "", "")
)
QUEUE = """\
RUNNING             ann                                     cpu=2,mem=1M,node=1,billing=4,gres/gpu=4
RUNNING             bob                                     cpu=2,mem=1M,node=1,billing=2,gres/gpu=2
PENDING             bob                                     cpu=2,mem=1M,node=1,billing=8,gres/gpu=8
"""


def test_the_head_has_metrics_of_slurm_and_cost(tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []

    def squeue(*arguments: str) -> str:
        calls.append(arguments)
        return QUEUE

    (tmp_path / "machines").write_text(f"{NOW - 7200:.0f} head on\n{NOW - 3600:.0f} yard-a-0 on\n")
    prices = {"head": 1.0, "yard-a": 10.0, "services": 0.5}
    nodes = {node.name: node.slurm for node in parse_nodes(SHOWN)}
    figures = Figures(tmp_path / "metrics.prom", tmp_path / "machines", prices, 100.0, squeue)
    for now in (0.0, 1.0, INTERVAL_SECONDS):
        figures.run_once(nodes, SHOWN, now, NOW)
    assert calls == [LISTED, LISTED]
    lines = (tmp_path / "metrics.prom").read_text().splitlines()
    expected = [
        *(f'trainyard_nodes{{state="{state}"}} 1' for state in ("busy", "idle", "off", "out")),
        'trainyard_node_in_service{node="yard-a-2"} 0',
        'trainyard_node_fault{node="yard-a-2",cause="gpu-xid"} 1',
        'trainyard_node_off{node="yard-a-3"} 1',
        "trainyard_gpus_in_service 24",
        "trainyard_gpus_allocated 6",
        'trainyard_jobs{state="running",user="bob"} 1',
        'trainyard_jobs{state="pending",user="bob"} 1',
        'trainyard_user_gpus{user="ann"} 4',
        "trainyard_usd_per_hour 31.5",
        "trainyard_spent_usd 13",
        "trainyard_limit_usd 100",
    ]
    assert [line for line in expected if line not in lines] == []
    assert "Xid 79" not in "".join(lines)


def test_the_repair_service_writes_the_metrics(tmp_path: Path) -> None:
    (tmp_path / ON_TIMES).parent.mkdir()
    site = {"silent_seconds": 15, "groups": {"a": {"spares": 0, "nodes": {"yard-a-0": "10.0.0.1"}}}}
    for is_monitored in (False, True):
        more: dict[str, object] = {"metrics": {"usd_per_hour": {}}} if is_monitored else {}
        service = Service(
            read_site(json.dumps({**site, **more})),
            tmp_path,
            control=lambda *arguments: SHOWN if arguments[-1] == "node" else "",
            queue=lambda *_: QUEUE,
            answering=set,
        )
        service.run_once(1000.0, NOW)
        assert (tmp_path / FILE).exists() is is_monitored
    assert f"/var/lib/trainyard/{FILE}" == FIGURES
    assert 'trainyard_nodes{state="busy"} 1\n' in (tmp_path / FILE).read_text()


def test_every_metric_has_a_type_and_a_description() -> None:
    assert all(kind == ("counter" if name.endswith("_total") else "gauge") for name, (kind, _) in METRICS.items())
    assert all(about.endswith(".") and "\n" not in about for _, about in METRICS.values())


PARAMETERS = "node_port=19100\nprometheus_port=19090\nretention_days=15\n"


def stage(root: Path, role: str = "head") -> list[str]:
    sandbox = Sandbox(root, ("systemctl",))
    sandbox.write({"handover/monitoring/prometheus.yml": "global: {}\n"})
    (root / "run/trainyard").mkdir(parents=True, exist_ok=True)
    handover = str(root / "handover")
    return sandbox.run("82-monitoring", ROLE=role, PRIVATE_IP="10.0.0.4", TEST_HANDOVER=handover).passed().commands


@pytest.mark.parametrize("role", ["head", "worker"])
def test_the_stage_starts_the_installation_in_the_background(tmp_path: Path, role: str) -> None:
    Sandbox(tmp_path).write({"etc/trainyard/parameters": ""})
    assert stage(tmp_path, role) == []
    (tmp_path / "etc/trainyard/monitoring.env").write_text(PARAMETERS)
    assert stage(tmp_path, role) == ["systemctl restart --no-block trainyard-monitoring.service"]
    assert (tmp_path / "etc/trainyard/metrics.env").read_text() == f"{PARAMETERS}address=10.0.0.4\n"
    assert (tmp_path / "etc/trainyard/prometheus.yml").exists() is (role == "head")
    (tmp_path / "etc/trainyard/monitoring.env").unlink()
    [stop] = stage(tmp_path, role)
    assert stop.startswith("systemctl stop trainyard-exporter.service ")
    assert stage(tmp_path, role) == []
