"""Job files: accepted values, all problems before submission, and secrets that only the job user can read."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from tests.yard.conftest import FakeStack, MakeProgram, job_of, refused, yard
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster
from yard.job.launcher import LAUNCHERS, Tasks, launcher
from yard.job.loader import WORKLOADS, load_job
from yard.job.placement import place
from yard.job.spec import parse_seconds
from yard.run.schedulers import Runner, Slurm
from yard.run.script import SECRETS_FILE, render_files, secrets_script
from yard.run.submit import pack

GOOD = "name: fine\nrun: echo hello\n"

BAD = {
    "unknown-key": (GOOD + "node: 2\n", ["node"]),
    "no-name": ("run: echo hello\n", ["name"]),
    "name-is-a-number": ("name: 7\nrun: echo\n", ["name"]),
    "no-program": ("name: fine\n", ["(file)"]),
    "two-programs": (GOOD + "workload: allreduce.py\n", ["run"]),
    "missing-workload": ("name: fine\nworkload: nowhere.py\n", ["workload"]),
    "torchrun-with-run": (GOOD + "launcher: torchrun\n", ["launcher"]),
    "unknown-launcher": (GOOD + "launcher: mpiexec\n", ["launcher"]),
    "fractional-nodes": (GOOD + "nodes: 1.5\n", ["nodes"]),
    "nodes-as-a-boolean": (GOOD + "nodes: true\n", ["nodes"]),
    "nodes-without-a-value": (GOOD + "nodes:\n", ["nodes"]),
    "memory-without-a-unit": (GOOD + "memory_per_node: '700'\n", ["memory_per_node"]),
    "time-in-base-sixty": (GOOD + "time: 1:30:00\n", ["time"]),
    "time-too-short": (GOOD + "time: 5s\n", ["time"]),
    "checkpoints-in-the-parent": (GOOD + "checkpoint_dir: ../elsewhere\n", ["checkpoint_dir"]),
    "args-as-text": (GOOD + "args: --steps 20\n", ["args"]),
    "wrong-items-of-args": (GOOD + "args: [[1], ok, yes, $HOME/x]\n", ["args[0]", "args[2]", "args[3]"]),
    "env-as-a-list": (GOOD + "env: [A=1]\n", ["env"]),
    "wrong-items-of-env": (
        GOOD + "env: {MASTER_ADDR: here, SLURM_PROCID: 0, a-b: 1, A: [1]}\n",
        ["env.MASTER_ADDR", "env.SLURM_PROCID", "env.a-b", "env.A"],
    ),
    "duplicate-key": (GOOD + "nodes: 1\nnodes: 2\n", ["nodes"]),
    "duplicate-env-key": (GOOD + "env:\n  A: 1\n  A: 2\n", ["env.A"]),
    "not-yaml": ("name: [fine\n", ["line 2"]),
    "tab": ("name: fine\n\trun: echo\n", ["line 2"]),
    "a-list": ("- name: fine\n", ["(file)"]),
    "empty": ("", ["(file)"]),
    "script-is-not-python": ("name: fine\nscript: train.sh\n", ["script"]),
    "neox-with-a-workload": ("name: fine\nworkload: train.py\nlauncher: neox\n", ["launcher", "workdir"]),
    "neox-without-workdir": ("name: fine\nscript: train.py\nlauncher: neox\n", ["workdir"]),
    "min-nodes-without-elastic": (GOOD + "min_nodes: 1\n", ["min_nodes"]),
    "min-nodes-above-nodes": (
        "name: fine\nworkload: train.py\nlauncher: torchrun-elastic\nnodes: 2\nmin_nodes: 3\n",
        ["min_nodes"],
    ),
    "container-as-text": (GOOD + "container: ubuntu\n", ["container"]),
    "container-without-an-image": (GOOD + "container: {runtime: docker}\n", ["container.image"]),
    "container-with-an-unknown-runtime": (GOOD + "container: {image: a, runtime: podman}\n", ["container.runtime"]),
    "container-with-a-typo": (GOOD + "container: {image: a, runtime: docker, mount: []}\n", ["container.mount"]),
    "mounts-as-text": (GOOD + "container: {image: a, runtime: docker, mounts: /a}\n", ["container.mounts"]),
    "wrong-mounts": (
        GOOD + "container: {image: a, runtime: docker, mounts: [/a, '/a/../b:/c', '/a:b']}\n",
        ["container.mounts[0]", "container.mounts[1]", "container.mounts[2]"],
    ),
    "files-as-a-list": (GOOD + "files: [a.json]\n", ["files"]),
    "wrong-files": (
        GOOD + "files: {job.log: x, rank-1.log: x, a/b: x, a.json: {b: 1}}\n",
        ["files.job.log", "files.rank-1.log", "files.a/b", "files.a.json"],
    ),
    "file-named-like-the-workload": ("name: fine\nworkload: train.py\nfiles: {train.py: x}\n", ["files.train.py"]),
    "empty-setup": (GOOD + "setup: '  '\n", ["setup"]),
    "heartbeat-too-short": (GOOD + "heartbeat: 2s\n", ["heartbeat"]),
    "chain-without-checkpoints": (GOOD + "chain: 3\n", ["chain"]),
    "smoke-as-text": (GOOD + "smoke: small\n", ["smoke"]),
    "smoke-with-a-typo": (GOOD + "smoke: {node: 1}\n", ["smoke.node"]),
    "many-problems": (
        "name: Bad Name\nnodes: 0\ntime: soon\nargs: [$WHO, ok, [1]]\nenv: {RANK: 1, x-y: 2}\n"
        "launcher: torchrun\nrun: a\nnod: 1\nchain: 2\n",
        ["nod", "name", "nodes", "args[0]", "args[2]", "env.RANK", "env.x-y", "time", "launcher", "chain"],
    ),
}
"""Contents of job files, and the paths in their error messages."""


@pytest.mark.parametrize("case", BAD)
def test_bad_job_file_reports_all_problems(case: str, tmp_path: Path, stack: FakeStack, program: MakeProgram) -> None:
    text, paths = BAD[case]
    file = tmp_path / "job.yaml"
    file.write_text(text)
    ssh = program("ssh", "exit 0")
    err = refused("submit", str(file))
    first, *reported = err.splitlines()
    assert [line.strip().removeprefix(f"{file}:").split(": ")[0] for line in reported] == paths
    assert all(". Fix: " in line and line.endswith(".") for line in reported)
    plural = "problem" if len(paths) == 1 else "problems"
    assert first.startswith(f"yard: {len(paths)} {plural} in {file}; nothing was submitted.")
    assert ssh.calls == []
    assert stack.pulumi.calls == []


def test_command_line_is_checked_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(GOOD + "args: [one]\nenv: {A: 1, B: 2}\n")
    job = load_job(str(file), {"nodes": 2, "name": "other"}, {"B": "three"}, ["two", "$RUN_DIR"])
    assert (job.spec.name, job.spec.nodes) == ("other", 2)
    assert job.spec.env == {"A": "1", "B": "three"}
    assert job.spec.args == ("one", "two", "$RUN_DIR")
    with pytest.raises(JobFileError) as caught:
        load_job(str(file), {"name": "No"}, {"RANK": "1"}, ["$NOBODY"])
    assert [problem.path for problem in caught.value.problems] == ["name", "args[1]", "env.RANK"]


def test_own_workload_precedes_a_shipped_one(tmp_path: Path) -> None:
    text = "name: mine\nworkload: train.py\n"
    assert job_of(tmp_path, text).workload == WORKLOADS / "train.py"
    (tmp_path / "train.py").touch()
    assert job_of(tmp_path, text).workload == tmp_path / "train.py"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("3d", 259200), ("02:30:00", 9000), ("1-00:00:01", 86401), ("5", None)],
)
def test_durations_are_parsed_to_seconds(text: str, seconds: int | None) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("key", "files", "rule"),
    [
        ("workload", [".ssh/id_ed25519", ".aws/config", "keys/server.pem", "./link.py"], "which is never sent"),
        ("workload", ["@/private.py", "../private.py", "./outside.py"], "in neither the job file's folder"),
        ("code: .\nscript", ["@/private.py", "../private.py"], "is outside"),
    ],
)
def test_private_files_are_not_sent(
    key: str, files: list[str], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name in (".ssh/id_ed25519", ".aws/config", "keys/server.pem", "../private.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("key\n")
    (folder / "link.py").symlink_to(folder / ".ssh/id_ed25519")
    (folder / "outside.py").symlink_to(tmp_path / "private.py")
    monkeypatch.chdir(folder)
    for file in files:
        with pytest.raises(JobFileError, match=rule):
            job_of(folder, f"name: foreign\n{key}: {file.replace('@', str(tmp_path))}\n")
    monkeypatch.chdir(tmp_path)
    assert job_of(folder, "name: fine\nworkload: ../private.py\n").workload is not None


VALUE = "hf_'quoted' $HOME \"x\"\nsecond line"


def test_bash_restores_any_secret(tmp_path: Path) -> None:
    file = tmp_path / SECRETS_FILE
    file.write_text(secrets_script("job.yaml", ("HF_TOKEN",), {"HF_TOKEN": VALUE}))
    line = f'source {file}; printf %s "$HF_TOKEN"'
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout == VALUE


def test_values_are_sent_on_stdin_only(
    tmp_path: Path, stack: FakeStack, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text("name: fine\nrun: echo here\nsecrets: [HF_TOKEN, A_KEY, EMPTY]\n")
    submit = ("submit", str(tmp_path / "job.yaml"))
    ssh = program("ssh", f'cat >"{stack.root}/programs/ssh.stdin"; echo 12')
    for name, value in (("HF_TOKEN", "hf_value"), ("EMPTY", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("A_KEY", raising=False)
    code, out, err = yard(*submit)
    assert (code, ssh.calls) == (1, [])
    assert [name for name in ("A_KEY", "EMPTY", "HF_TOKEN") if f"{name} is not set" in err] == ["A_KEY", "EMPTY"]
    assert "hf_value" not in err
    for name in ("A_KEY", "EMPTY"):
        monkeypatch.setenv(name, "hf_value")
    for option in ((), ("--json",)):
        code, out, _ = yard(*submit, "--dry-run", *option)
        assert (code, SECRETS_FILE in out, "hf_value" in out) == (0, True, False)
    code, out, err = yard(*submit)
    assert code == 0
    assert b"export HF_TOKEN=hf_value\n" in ssh.stdin
    assert "hf_value" not in out + err + "".join(ssh.calls)


@pytest.mark.parametrize("scheduler", [Slurm(), Runner()], ids=["slurm", "none"])
def test_other_users_cannot_read_a_job_folder(scheduler: Slurm | Runner, tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", "echo 41")
    program("python3", "echo 41")
    files = {"job.sbatch": "#\n", SECRETS_FILE: "export A=b\n"}
    line = scheduler.submit_line(str(tmp_path), "hello-1", 1)
    subprocess.run(["bash", "-c", line], input=pack("hello-1", files), check=True, capture_output=True)
    assert stat.S_IMODE((tmp_path / "hello-1").stat().st_mode) == 0o700
    for name in files:
        assert stat.S_IMODE((tmp_path / "hello-1" / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", LAUNCHERS)
def test_each_launcher_hides_secrets_or_refuses_them(name: str, tmp_path: Path, local: Cluster) -> None:
    chosen = launcher(name)
    script = "script: train.py\nworkdir: /shared/code\n" if name == "neox" else "workload: train.py\n"
    text = f"name: fine\nlauncher: {name}\n{script}secrets: [HF_TOKEN]\n"
    if chosen.tasks is Tasks.FIRST:
        with pytest.raises(JobFileError, match="as arguments, which other users can read"):
            job_of(tmp_path, text)
        return
    loaded = job_of(tmp_path, text)
    lines = render_files(loaded, place(loaded, local))["job.sbatch"].splitlines()
    assert f'  source "$RUN_DIR/{SECRETS_FILE}"' in lines
