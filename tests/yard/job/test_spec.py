"""Job files and programs: accepted values, all problems before submission, and private files and secrets."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.yard.conftest import FakeStack, MakeProgram, job_of, printed, refused, yard
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster
from yard.job.launcher import LAUNCHERS, Tasks, launcher
from yard.job.loader import WORKLOADS, load_job
from yard.job.placement import place
from yard.job.spec import parse_seconds
from yard.run.request import command_job
from yard.run.schedulers import Runner, Slurm
from yard.run.script import SECRETS_FILE, render_files, secrets_script
from yard.run.submit import pack

GOOD = "name: fine\nrun: echo hello\n"

BAD = {
    "wrong-types": (
        GOOD + "node: 2\nnodes: 1.5\nmemory_per_node: '700'\ntime: 1:30:00\nargs: --steps 20\nenv: [A=1]\n"
        "container: ubuntu\nfiles: [a.json]\n",
        ["node", "nodes", "memory_per_node", "container", "args", "files", "env", "time"],
    ),
    "wrong-values": (
        GOOD + "launcher: mpiexec\nnodes: true\ntime: 5s\ncheckpoint_dir: ../elsewhere\nsetup: '  '\nheartbeat: 2s\n"
        "stall_minutes: 4\n",
        ["nodes", "launcher", "setup", "time", "heartbeat", "stall_minutes", "checkpoint_dir"],
    ),
    "wrong-arguments": (
        GOOD + "nodes:\nargs: [[1], ok, yes, $HOME/x]\nenv: {MASTER_ADDR: here, SLURM_PROCID: 0, a-b: 1, A: [1]}\n",
        ["nodes", "args[0]", "args[2]", "args[3]", "env.MASTER_ADDR", "env.SLURM_PROCID", "env.a-b", "env.A"],
    ),
    "wrong-files": (
        GOOD + "files: {job.log: x, rank-1.log: x, a/b: x, a.json: {b: 1}}\nchain: 3\n",
        ["files.job.log", "files.rank-1.log", "files.a/b", "files.a.json", "chain"],
    ),
    "wrong-container": (
        GOOD + "container: {runtime: podman, mount: [], mounts: /a}\n",
        ["container.mount", "container.image", "container.runtime", "container.mounts"],
    ),
    "wrong-mounts": (
        GOOD + "container: {image: a, runtime: docker, mounts: [/a, '/a/../b:/c', '/a:b']}\n",
        ["container.mounts[0]", "container.mounts[1]", "container.mounts[2]"],
    ),
    "wrong-groups": (
        GOOD + "group: a\ngroups: [a, b, a, 'x y']\nmax_usd: 0\n",
        ["groups[3]", "groups[2]", "max_usd", "groups"],
    ),
    "no-groups": (GOOD + "groups: []\nmax_usd: .inf\n", ["groups", "max_usd"]),
    "no-name": ("run: echo hello\n", ["name"]),
    "name-is-a-number": ("name: 7\nrun: echo\n", ["name"]),
    "no-program": ("name: fine\n", ["(file)"]),
    "two-programs": (GOOD + "workload: allreduce.py\n", ["run"]),
    "missing-workload": ("name: fine\nworkload: nowhere.py\n", ["workload"]),
    "torchrun-with-run": (GOOD + "launcher: torchrun\n", ["launcher"]),
    "duplicate-keys": (GOOD + "nodes: 1\nnodes: 2\n", ["nodes"]),
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
    "file-named-like-the-workload": ("name: fine\nworkload: train.py\nfiles: {train.py: x}\n", ["files.train.py"]),
    "smoke-as-text": (GOOD + "smoke: small\n", ["smoke"]),
    "smoke-with-a-typo": (GOOD + "time: 5s\nsmoke: {node: 1}\n", ["smoke.node", "time"]),
    "many-problems": (
        "name: Bad Name\nnodes: 0\ntime: soon\nargs: [$WHO, ok, [1]]\nenv: {RANK: 1, x-y: 2}\n"
        "launcher: torchrun\nrun: a\nnod: 1\nchain: 2\n",
        ["nod", "name", "nodes", "args[0]", "args[2]", "env.RANK", "env.x-y", "time", "launcher", "chain"],
    ),
}
"""Contents of job files, and the paths in their error messages."""


@pytest.mark.parametrize("case", BAD)
def test_bad_job_file_reports_all_problems(case: str, tmp_path: Path, stack: FakeStack) -> None:
    text, paths = BAD[case]
    file = tmp_path / "job.yaml"
    file.write_text(text)
    ssh = stack.program("ssh", "exit 0")
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


def test_values_are_sent_on_stdin_only(tmp_path: Path, stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text("name: fine\nrun: echo here\nsecrets: [HF_TOKEN, A_KEY, EMPTY]\n")
    submit = ("submit", str(tmp_path / "job.yaml"))
    ssh = stack.program("ssh", f'cat >"{stack.root}/programs/ssh.stdin"; echo 12')
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


SLURM = "#!/bin/bash\n#SBATCH --nodes=1\nsrun hostname\n"
REFUSED: dict[str, tuple[str | bytes | None, str, str]] = {
    "missing.py": (None, "file not found", "use a path to a"),
    "trian.py": (None, "file not found", "write train.py"),
    "helo": (None, "recipe not found", "write hello"),
    "empty.py": ("\n", "is empty", "save the program in it"),
    "program.bin": (b"\x7fELF\x00\xff", "is not a text file", "yard submit -- ./program.bin"),
    "broken.py": ("x = (\n", "line 1: is not valid Python", "correct the line"),
    "binary.py": (b"print(1)\n\x00", "is not a text file", "yard submit -- ./binary.py"),
    "notes.txt": ("words\n", "is not a Python file (.py)", "yard submit -- bash notes.txt"),
    "plain.sbatch": ("srun hostname\n", "must begin with `#!`", "#!/bin/bash"),
    "hello": ("words\n", "is a recipe and also a file", "use `./hello`"),
    ".": (None, "is a directory", "for example `yard submit train.py`"),
    "train.py": ("print(1)\n", "this job has no smoke size", "omit --smoke"),
    "job.sbatch": (SLURM, "this job has no smoke size", "omit --smoke"),
}
"""Content of each file, and the rule and the fix in its error message."""


@pytest.fixture
def folder(stack: FakeStack, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The current directory, which contains a program, a Slurm script, and a file that looks like a secret."""
    made = tmp_path_factory.mktemp("my project")
    for name, text in (("train.py", "print(1)\n"), ("job.sbatch", SLURM), (".env", "TOKEN=1\n")):
        (made / name).write_text(text)
    monkeypatch.chdir(made)
    return made


def dry_run(*words: str) -> Any:
    return json.loads(printed("submit", "--dry-run", "--json", *words))


@pytest.mark.parametrize("name", REFUSED)
def test_bad_file_has_one_message_with_a_fix(name: str, folder: Path, program: MakeProgram) -> None:
    text, rule, fix = REFUSED[name]
    if text is not None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    ssh = program("ssh", "exit 0")
    code, _, err = yard("submit", name, *(["--smoke"] if "smoke" in rule else []))
    assert (code, err.count("Fix: ")) == (1, 1)
    assert err.startswith(f"yard: 1 problem in {name}; nothing was submitted.")
    assert rule in err
    assert fix in err
    assert ssh.calls == []


def test_directory_named_like_a_recipe_is_ignored(folder: Path) -> None:
    (folder / "hello").mkdir()
    assert dry_run("hello")["name"] == "hello"


def test_python_file_starts_with_torchrun(folder: Path) -> None:
    seen = dry_run("train.py", "--nodes", "2", "--", "--lr", "1e-4")
    script = seen["files"]["job.sbatch"]
    assert (seen["name"], seen["starts"]) == ("train", "torchrun starts train.py on each of 2 nodes, 1 rank per node")
    assert "readonly workdir=code\n" in script
    assert "  start_torchrun \\\n" in script
    assert "    train.py --lr 1e-4\n" in script
    assert seen["code"] == {"from": str(folder), "files": ["job.sbatch", "train.py"]}
    assert "  exec python3 -u train.py\n" in dry_run("train.py", "--launcher", "srun")["files"]["job.sbatch"]


def test_program_runs_without_its_directory(folder: Path) -> None:
    seen = dry_run("train.py", "--no-code")
    assert seen["files"]["train.py"] == "print(1)\n"
    assert seen["code"] is None
    assert dry_run("--no-code", "--", "hostname")["code"] is None


def test_command_starts_once_per_node(folder: Path) -> None:
    seen = dry_run("--nodes", "2", "--", "python", "train.py", "--name", "a b")
    assert (seen["name"], seen["starts"]) == ("train", "the command starts once on each of 2 nodes")
    assert seen["files"]["run.sh"] == "python train.py --name 'a b'\n"
    assert dry_run("--", "echo $RANK | wc")["files"]["run.sh"] == "echo $RANK | wc\n"
    names = {"python My": "python", "x src/My_Train.py": "my_train", "FOO=1 bash go.sh && ls": "go", "!": "job"}
    assert {line: command_job([line], code=False)["name"] for line in names} == names
    assert command_job(["A" * 99], code=False)["name"] == "a" * 40


def test_home_directory_is_never_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for home in (folder, folder / "below"):
        monkeypatch.setenv("HOME", str(home))
        for file in ("train.py", "job.sbatch"):
            assert "your home directory, which is never sent" in refused("submit", file, "--dry-run")
        code, out, err = yard("submit", "--dry-run", "--json", "--", "hostname")
        assert (code, json.loads(out)["code"]) == (0, None)
        assert "no files are sent" in err


@pytest.mark.parametrize(("option", "warned"), [("--mpi=pmi2", True), ("--mpi pmi2", True), ("--mpi=pmix", False)])
def test_pmi2_gets_a_warning(option: str, warned: bool, folder: Path) -> None:
    """Ranks of an MPI library without PMI2 do not find each other, and the job succeeds."""
    line = f"srun {option} ./program"
    (folder / "job.sbatch").write_text(f"{SLURM}{line}\n")
    (folder / "job.yaml").write_text(f"name: mpi\nmpi: {option[-4:]}\nrun: ./program\n")
    for words in (["job.sbatch"], ["job.yaml"], ["--", line]):
        code, _, err = yard("submit", "--dry-run", *words)
        assert (words, code, "use pmix" in err) == (words, 0, warned)


def test_slurm_script_lists_all_problems(folder: Path, program: MakeProgram) -> None:
    options = ("--launcher", "srun", "--time", "soon", "--group", "cpu", "--name", "A B", "--set", "RANK=1")
    err = refused("submit", "job.sbatch", *options)
    paths = [line.strip().removeprefix("job.sbatch:").split(": ")[0] for line in err.splitlines()[1:]]
    assert paths == ["time", "name", "launcher", "--set.RANK", "group"]
