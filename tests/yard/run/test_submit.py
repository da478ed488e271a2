"""Submission and `yard run`: arrays, dependencies, dry runs, archives, Slurm scripts, sessions and ports."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.stackfile.read import read_stack
from tests.components.platforms.recording import stack_text
from tests.conftest import ROOT
from tests.integration.project import alive
from tests.yard.conftest import HOST_KEY, FakeStack, LocalHead, MakeProgram, printed, refused, wait_until, yard
from trainyard.errors import JobFileError, RemoteError, StackError
from trainyard.outputs import Cluster, Prices, dumped
from yard.job.loader import load_job
from yard.preview.rehearsal import rehearse as planned
from yard.run.queue import parse_scontrol
from yard.run.request import Request, read_request
from yard.run.schedulers import Slurm, until_disconnected
from yard.run.submit import Prepared, pack, prepare_all
from yard.stack.workspace import stack_names

SSH = """
case "$*" in
  *'show job 12 '*) echo 'JobId=12 JobName=x UserId=t(1) JobState=RUNNING' ;;
  *'show job 13 '*) echo 'JobId=13 JobName=x UserId=t(1) JobState=COMPLETED' ;;
  *'show job 14 '*) echo 'JobId=14 JobName=x UserId=t(1) JobState=FAILED' ;;
  *'show job'*) ;;
  *) cat >/dev/null; echo x >>"@/count"; wc -l <"@/count" ;;
esac
"""


@pytest.fixture
def job(stack: FakeStack, tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text("name: sweep\nrun: echo $ARRAY_INDEX\n")
    stack.program("ssh", SSH.replace("@", str(tmp_path)))
    return file


def submissions(tmp_path: Path) -> list[str]:
    calls = (tmp_path / "programs" / "ssh.calls").read_text().splitlines()
    return [call for call in calls if "tar -xC" in call]


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-4:0", "1,1", "0-3%0", "-1", "0-3%", "1,,2", "0-200"])
def test_wrong_array_is_refused(text: str, job: Path) -> None:
    assert f"{job}:array: must " in refused("submit", str(job), "--array", text, "--dry-run")


@pytest.mark.parametrize(
    ("array", "numbers", "dependencies"),
    [("4-6%2", [4, 5, 6], [[], [], ["afterany:1"]]), ("1,5,3", [1, 5, 3], [[]] * 3), ("0-6:3", [0, 3, 6], [[]] * 3)],
)
def test_array_is_one_job_for_each_number(
    array: str, numbers: list[int], dependencies: list[list[str]], job: Path, tmp_path: Path
) -> None:
    out = printed("submit", str(job), "--array", array, "--json")
    assert [json.loads(line)["name"] for line in out.splitlines()] == [f"sweep-{number}" for number in numbers]
    assert [re.findall(r"--dependency=(\S+)", call) for call in submissions(tmp_path)] == dependencies
    seen = json.loads(yard("submit", str(job), "--array", array, "--dry-run", "--json")[1])
    assert (seen["jobs"], seen["name"]) == (3, f"sweep-{numbers[0]}")
    assert f"  export ARRAY_INDEX={numbers[0]}\n" in seen["files"]["job.sbatch"]


def test_index_without_an_array_is_refused(job: Path) -> None:
    err = refused("submit", str(job), "--set", "SEED=$ARRAY_INDEX", "--dry-run", "--", "$ARRAY_INDEX")
    assert "args[0]: $ARRAY_INDEX is set only in arrays" in err
    assert "env.SEED: $ARRAY_INDEX is set only in arrays" in err


def test_job_waits_only_for_jobs_that_have_not_ended(job: Path, tmp_path: Path) -> None:
    code, _, _ = yard("submit", str(job), "--after", "12", "--after", "13")
    assert code == 0
    assert "sbatch --parsable --dependency=afterok:12 --kill-on-invalid-dep=yes job.sbatch" in submissions(tmp_path)[0]


@pytest.mark.parametrize(("number", "words"), [(14, "job 14 is FAILED"), (15, "job 15 does not exist")])
def test_job_after_a_failed_job_is_refused(number: int, words: str, job: Path, tmp_path: Path) -> None:
    assert words in refused("submit", str(job), "--after", str(number))
    assert submissions(tmp_path) == []


def test_log_of_an_array_cannot_be_followed(job: Path, tmp_path: Path) -> None:
    code, _, err = yard("submit", str(job), "--array", "0-1", "--follow")
    assert code == 2
    assert "yard logs" in err


def test_options_and_keys_are_checked_together(job: Path) -> None:
    job.write_text("name: sweep\nrun: ls\nafter: [0, x]\narray: 5\ngroup: a b\n")
    err = refused("submit", str(job), "--time", "soon")
    paths = [line.strip().removeprefix(f"{job}:").split(": ")[0] for line in err.splitlines()[1:]]
    assert paths == ["group", "after[0]", "after[1]", "array", "time"]


NO_STACK = "pulumi cannot read stack 'x': no stack named 'x' found. Fix: create it"


@pytest.fixture
def undeployed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No stack has outputs. The current directory contains a program and a Slurm script."""

    def fail(*_: Any) -> None:
        raise StackError(NO_STACK)

    monkeypatch.setattr("yard.commands.jobs.remote_of", fail)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rehearse(*words: str) -> Any:
    code, out, err = yard("submit", "--dry-run", "--json", *words)
    assert code == 0, err
    assert err.startswith("yard: dry run with the plan of ")
    assert err.endswith("without a cluster: the stack does not exist yet\n")
    return json.loads(out)


@pytest.mark.parametrize("stack", [*stack_names(), "acme/trainyard/azure-a100"])
def test_every_stack_file_can_be_rehearsed(stack: str, undeployed: Path) -> None:
    seen = rehearse("train.py", "--stack", stack)
    assert (seen["estimate"]["source"], seen["estimate"]["file"]) == (
        "plan", f"stacks/Pulumi.{stack.rpartition('/')[2]}.yaml",
    )  # fmt: skip
    assert any(name.startswith("job.s") for name in seen["files"])
    assert "# dry run with the plan of stacks/" in yard("submit", "train.py", "--dry-run", "--stack", stack)[1]


def test_estimate_has_the_prices_of_the_nodes(undeployed: Path) -> None:
    found = rehearse("train.py", "--stack", "azure-h100", "--nodes", "2", "--time", "30m")["estimate"]
    assert (found["nodes"], found["limit_s"], found["time_s"]) == (2, 1800, None)
    assert found["cluster_usd_per_hour"] > found["job_usd_per_hour"] > 100
    assert found["usd_at_limit"] == pytest.approx(found["job_usd_per_hour"] / 2, abs=0.01)
    array = rehearse("train.py", "--stack", "azure-h100", "--nodes", "2", "--time", "30m", "--array", "1-4")["estimate"]
    assert array["usd_at_limit"] == pytest.approx(found["usd_at_limit"] * 4, abs=0.05)


def test_unknown_values_are_unknown(undeployed: Path) -> None:
    found = rehearse("train.py", "--stack", "lambda-a6000")["estimate"]
    assert (found["job_usd_per_hour"], found["usd_at_limit"], found["time_s"]) == (None, None, None)
    script = rehearse("job.sbatch", "--stack", "azure-a100")["estimate"]
    assert (script["nodes"], script["job_usd_per_hour"]) == (None, None)


def test_spot_prices_do_not_limit_the_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "Pulumi.gcp-a2.yaml"
    file.write_text(stack_text("gcp-a2", nodes__gpu__capacity={"kind": "spot"}))
    firm = planned("gcp-a2", "").cluster
    assert (firm.firm_usd("gpu") or 0) > 1
    assert (
        "spot"
        not in dumped(replace(firm, head=replace(firm.head, admin_user="ops", host_key=HOST_KEY), nodes=()))["prices"]
    )
    assert firm.usd_per_hour is not None
    monkeypatch.setattr("yard.preview.rehearsal.read_stack", lambda path: read_stack(file))
    spot = planned("gcp-a2", "")
    assert (spot.cluster.firm_usd("gpu"), spot.cluster.usd_per_hour) == (None, None)
    (tmp_path / "job.yaml").write_text(PRICED + "max_usd: 25\n")
    with pytest.raises(JobFileError, match="max_usd: needs a fixed list price, which is unknown for group gpu"):
        prepare_all(load_job(str(tmp_path / "job.yaml"), {}, {}, []), replace(spot.cluster, scheduler="slurm"))


PRICED = "name: fine\nrun: echo\nnodes: 2\n"


@pytest.mark.parametrize(
    ("keys", "limit", "said"),
    [
        # Two nodes cost 20 dollars an hour, so 25 dollars are 75 minutes.
        (
            "time: 8h\nmax_usd: 25\n",
            "01:15:00",
            "max_usd (25) sets the time limit to 75 min, which costs at most $25.00",
        ),
        (
            "time: 8h\nmax_usd: 0.99\n",
            "00:02:00",
            "max_usd (0.99) sets the time limit to 2 min, which costs at most $0.67",
        ),
        ("time: 30m\nmax_usd: 25\n", "00:30:00", "the time limit is 30 min, which costs at most $10.00"),
    ],
)
def test_max_usd_limits_the_time(keys: str, limit: str, said: str, stack: FakeStack, local: Cluster) -> None:
    stack.deploy(replace(local, prices=Prices(head=1.0, nodes={"gpu": 10.0}, services=0.0)))
    stack.program("ssh", "cat >/dev/null; echo 12")
    file = stack.root / "job.yaml"
    file.write_text(PRICED + keys)
    script = json.loads(printed("submit", str(file), "--dry-run", "--json"))["files"]["job.sbatch"]
    assert f"#SBATCH --time={limit}\n" in script
    for option in ((), ("--dry-run",)):
        assert f"{said} at the list price of $20.00 per hour; all starts together" in printed(
            "submit", str(file), *option
        )


def test_max_usd_without_a_price_or_a_minute_is_refused(stack: FakeStack, local: Cluster) -> None:
    file = stack.root / "job.yaml"
    file.write_text(PRICED + "max_usd: 0.3\n")
    ssh = stack.program("ssh", "exit 0")
    assert "unknown for group gpu (Spot machines, existing hosts and local machines have none)" in refused(
        "submit", str(file)
    )
    stack.deploy(replace(local, prices=Prices(nodes={"gpu": 10.0})))
    err = refused("submit", str(file))
    assert "max_usd: allows less than one minute, because the list price of the job's nodes is $20.00 per hour" in err
    assert "Fix: use at least 0.34" in err
    assert ssh.calls == []


def test_rehearsal_prints_the_effect_of_max_usd(undeployed: Path) -> None:
    (undeployed / "job.yaml").write_text(PRICED + "time: 30m\nmax_usd: 40\n")
    found = rehearse("job.yaml", "--stack", "azure-h100")["estimate"]
    assert found["max_usd"] == 40
    assert found["limit_s"] == int(40 / found["job_usd_per_hour"] * 60) * 60 < 1800
    assert found["usd_at_limit"] < 40
    assert "max_usd (40) sets the time limit to " in printed("submit", "job.yaml", "--stack", "azure-h100", "--dry-run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train.py", "--stack", "azure-h100", "--nodes", "9"), "the job needs 9 nodes, but group 'gpu' has 2"),
        (("opt-175b", "--stack", "azure-h100", "--nodes", "2"), "such nodes are sufficient"),
        (("train.py", "--stack", "nowhere"), "stacks/Pulumi.nowhere.yaml does not exist"),
    ],
)
def test_job_that_does_not_fit_the_plan_is_refused(words: tuple[str, ...], message: str, undeployed: Path) -> None:
    assert message in refused("submit", "--dry-run", *words)


def test_submission_needs_a_cluster(undeployed: Path) -> None:
    code, _, err = yard("submit", "train.py", "--stack", "azure-h100")
    assert (code, err) == (1, f"yard: {NO_STACK}\n")


def test_rehearsal_needs_a_project(stack: FakeStack) -> None:
    (stack.root / "Pulumi.yaml").unlink()
    stack.program("pulumi", "echo 'error: no stack named x' >&2; exit 1")
    assert "no stack named x" in refused("submit", "hello", "--dry-run")


@pytest.mark.parametrize(("stack", "home"), [("local", "/home"), ("lambda-a6000", "/home/trainer")])
def test_existing_hosts_mount_only_the_home_of_the_job_user(stack: str, home: str) -> None:
    """Other users of existing hosts keep their homes."""
    assert planned(stack, "not deployed").cluster.home_path == home


def run(jobs_dir: Path, name: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    line = ["bash", "-c", Slurm().submit_line(str(jobs_dir), name, 1)]
    return subprocess.run(line, input=data or pack(name, {"job.sbatch": "#\n"}), capture_output=True, check=False)


@pytest.mark.parametrize("answer", ["41", "41;yard"])
def test_head_unpacks_submits_and_links(answer: str, tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", f'test -f job.sbatch && echo "{answer}"')
    done = run(tmp_path, "hello-1")
    assert (done.returncode, done.stdout) == (0, b"41\n")
    assert (tmp_path / ".ids" / "41" / "job.sbatch").read_text() == "#\n"


def test_refused_job_leaves_no_folder(tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    done = run(tmp_path, "hello-1")
    assert done.returncode == 1
    assert b"invalid partition" in done.stderr
    assert not (tmp_path / "hello-1").exists()
    assert list((tmp_path / ".ids").iterdir()) == []


def test_incomplete_upload_leaves_no_folder(tmp_path: Path, program: MakeProgram) -> None:
    sbatch = program("sbatch", "echo 41")
    whole = pack("hello-1", {"job.sbatch": "#\n" * 4096})
    assert run(tmp_path, "hello-1", whole[:2048]).returncode != 0
    assert sbatch.calls == []
    assert {path.name for path in tmp_path.iterdir()} == {"programs"}


def test_run_folders_have_a_secret_random_id(tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", "echo 41")
    names = ("hello-1", "hello-2")
    assert [run(tmp_path, name).returncode for name in names] == [0, 0]
    ids = {(tmp_path / name / "run-id").read_text() for name in names}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in ids)


TEXT = "#!/bin/bash\n#SBATCH --job-name=My_Model\n#SBATCH --output=out-%j.txt\nsrun hostname\n"

SBATCH = 'pwd >>"@/sbatch.calls"; echo "A=$A" >>"@/sbatch.calls"; touch out-7.txt; echo 7'
SCONTROL = 'echo "JobId=7 JobName=a UserId=t(1) JobState=COMPLETED ExitCode=0:0 StdOut=$(find @/jobs -name out-7.txt)"'


@pytest.fixture
def script(tmp_path: Path) -> Request:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "job.sbatch").write_text(TEXT)
    (folder / "model.py").write_text("")
    options = {"nodes": 2, "time": "2d", "group": "gpu", "name": "other", "gpus_per_node": 1}
    path = str(folder / "job.sbatch")
    return Request(job=path, words=["x y"], options=options, settings=["A=b c"], smoke=False, code=True)


@pytest.fixture
def head(tmp_path: Path, program: MakeProgram) -> Path:
    program("sbatch", SBATCH.replace("@", f"{tmp_path}/programs"))
    program("scontrol", SCONTROL.replace("@", str(tmp_path)))
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    return jobs


def prepare(request: Request, cluster: Cluster) -> Prepared:
    return read_request(request)(cluster)[0]


def submit(jobs: Path, script: Request, cluster: Cluster, name: str = "run-1", **more: str) -> Path:
    prepared = prepare(script, cluster)
    line = Slurm().submit_line(str(jobs), name, 1, prepared.script)
    data = pack(name, {**prepared.files, **more}, prepared.tree)
    done = subprocess.run(["bash", "-c", line], input=data, capture_output=True, check=True)
    assert done.stdout == b"7\n"
    return jobs / name


def log_of_job_7(head: Path) -> str:
    follow = ["bash", str(ROOT / "yard" / "run" / "follow.sh"), str(head), "7", "0", "0"]
    return subprocess.run(follow, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout


def test_script_is_sent_unchanged(script: Request, local: Cluster, head: Path) -> None:
    run = submit(head, script, local)
    assert (run / "code" / "job.sbatch").read_text() == TEXT
    assert sorted(path.name for path in (run / "code").iterdir()) == ["job.sbatch", "model.py", "out-7.txt"]
    arguments, folder, env = (head.parent / "programs" / "sbatch.calls").read_text().splitlines()
    options = "--nodes=2 --time=2-00:00:00 --partition=gpu --job-name=other --gpus-per-node=1"
    assert arguments == f"--parsable {options} ./job.sbatch x y"
    assert (folder, env) == (f"{run}/code", "A=b c")


def test_script_runs_in_an_environment(
    script: Request, local: Cluster, head: Path, tmp_path: Path, program: MakeProgram
) -> None:
    program("sbatch", f'echo "$VIRTUAL_ENV ${{PATH%%:*}}" >"{tmp_path}/seen"; echo 7')
    for name, more in (("torch", {"environment": "/envs/a b\n"}), ("none", {})):
        chosen = replace(script, options={"environment": name})
        environment = prepare(chosen, local).environment
        assert (environment.name if environment else "none") == name
        submit(head, chosen, local, f"run-{name}", **more)
        assert ((tmp_path / "seen").read_text() == "/envs/a b /envs/a b/bin\n") is bool(more)


def test_log_is_found_after_slurm_has_forgotten_the_job(
    script: Request, local: Cluster, head: Path, program: MakeProgram
) -> None:
    run = submit(head, script, local)
    (run / "code" / "out-7.txt").write_text("one\ntwo\n")
    program("scontrol", "exit 1")
    assert log_of_job_7(head).startswith("one\ntwo\n")


def test_log_of_an_unknown_submission_comes_from_slurm(head: Path) -> None:
    (head / "out-7.txt").write_text("plain sbatch\n")
    assert log_of_job_7(head).startswith("plain sbatch\n")


@pytest.mark.parametrize(
    ("scheduler", "options", "rule"),
    [
        ("slurm", {"environment": "troch"}, "environment"),
        ("none", {}, "needs Slurm, and cluster 'yard' has no scheduler"),
    ],
)
def test_unsuitable_script_is_refused(
    scheduler: str, options: dict[str, Any], rule: str, script: Request, local: Cluster
) -> None:
    with pytest.raises(JobFileError, match=rule):
        prepare(replace(script, options=options), replace(local, scheduler=scheduler))


def test_name_comes_from_the_script(script: Request, local: Cluster) -> None:
    assert prepare(replace(script, options={}), local).name == "my_model"


def test_run_folder_of_a_script_is_the_parent() -> None:
    record = "JobId=7 JobName=x UserId=t(1) JobState=RUNNING WorkDir=/shared/jobs/a-20260102-030405-ab12/code"
    assert parse_scontrol(record)[0].run_dir == "/shared/jobs/a-20260102-030405-ab12"
    assert parse_scontrol(record.replace("-ab12", ""))[0].run_dir.endswith("/code")


def test_resume_runs_the_submission_again(script: Request, local: Cluster, head: Path, tmp_path: Path) -> None:
    submit(head, script, local)
    remote: Any = LocalHead(replace(local, shared_path=str(tmp_path)))
    job = parse_scontrol(f"JobId=7 JobName=x UserId=t(1) JobState=FAILED WorkDir={tmp_path}")[0]
    assert Slurm().resume(remote, job) == 7
    calls = (head.parent / "programs" / "sbatch.calls").read_text().splitlines()
    assert calls[:3] == calls[3:]
    other = parse_scontrol(f"JobId=9 JobName=x UserId=t(1) JobState=FAILED WorkDir={tmp_path}")[0]
    with pytest.raises(RemoteError, match="job 9 was not submitted with `yard submit`"):
        Slurm().resume(remote, other)
    assert not (tmp_path / "events").exists()


def commands(*words: str) -> Any:
    return json.loads(printed("run", "--json", *words))


@pytest.fixture
def without_slurm(stack: FakeStack, local: Cluster) -> FakeStack:
    """A stack without a scheduler, on whose first node a job runs."""
    stack.deploy(replace(local, scheduler="none"))
    stack.program("ssh", """[[ $* != *' nodes' ]] || echo '["yard-gpu-0"]'""")
    return stack


def test_a_session_is_a_step_of_an_allocation(stack: FakeStack) -> None:
    argv = commands("--nodes", "2", "--time", "2h")["argv"]
    assert argv[:5] == ["ssh", "-F", str(stack.folder / "config"), "-t", "yard-head"]
    words = shlex.split(argv[5])
    step = words.index("srun")
    assert words[0] == "salloc"
    assert {"--partition=gpu", "--nodes=2", "--gpus-per-node=2", "--exclusive", "--time=02:00:00"} <= set(words[:step])
    assert not [word for word in words[:step] if word.startswith(("--requeue", "--signal", "--output"))]
    assert {"--nodes=1", "--ntasks=1", "--overlap", "--pty", "--gpus-per-node=2"} <= set(words[step:])
    assert words[-3:-1] == ["bash", "-c"]
    assert words[-1].endswith("exec bash -l")


def test_a_command_on_a_part_of_a_node_keeps_its_quotes(stack: FakeStack) -> None:
    words = shlex.split(commands("--gpus", "1", "--", "echo", "a b; c")["argv"][5])
    assert words[-1].endswith("; echo 'a b; c'")
    assert "--gpus-per-node=1" in words
    assert "--exclusive" not in words


@pytest.mark.parametrize(("words", "typed"), [((), "printenv"), (("--", "printenv"), "")], ids=["shell", "command"])
def test_a_session_activates_an_environment(
    words: tuple[str, ...], typed: str, without_slurm: FakeStack, program: MakeProgram
) -> None:
    nodes = """*' nodes') echo '["yard-gpu-0"]' ;;"""
    program("ssh", f"""case $* in {nodes} *sha256sum*) echo ready '/shared/envs/a b-1' ;; esac""")
    line = commands("--env", "torch", *words)["argv"][5]
    done = subprocess.run(["bash", "-c", line], input=typed, capture_output=True, text=True, check=True, timeout=30)
    variables = dict(row.split("=", 1) for row in done.stdout.splitlines() if "=" in row)
    assert variables["VIRTUAL_ENV"] == "/shared/envs/a b-1"
    assert variables["PATH"].startswith("/shared/envs/a b-1/bin:/")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "3", "--", "true"], "the job needs 3 nodes, but group 'gpu' has 2"),
        (["--gpus", "4", "--", "true"], "the job needs 4 GPUs per node"),
        (["--group", "cpu", "--", "true"], "has no node group 'cpu'"),
        (["--time", "soon", "--", "true"], "time"),
        (["--env", "troch", "--", "true"], "torch"),
        ([], "a shell needs a terminal"),
    ],
)
def test_impossible_sessions_are_refused(words: list[str], message: str, stack: FakeStack) -> None:
    ssh = stack.program("ssh", "exit 0")
    assert message in refused("run", *words)
    assert ssh.calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--nodes", "2"), "without a scheduler, a session uses one node"), ((), "all nodes in group 'gpu' run jobs")],
)
def test_sessions_that_need_a_scheduler_are_refused(
    words: tuple[str, ...], message: str, without_slurm: FakeStack, program: MakeProgram
) -> None:
    program("ssh", """[[ $* != *' nodes' ]] || echo '["yard-gpu-0", "yard-gpu-1"]'""")
    assert message in refused("run", *words, "--", "true")


def test_the_exit_code_is_that_of_the_session(stack: FakeStack) -> None:
    ssh = stack.program("ssh", "[[ $* != *salloc* ]] || exit 7")
    code, _, err = yard("run", "--", "false")
    assert code == 7
    assert f"Include {stack.folder / 'config'}" in err
    assert " -t " not in ssh.calls[-1]
    assert "--pty" not in ssh.calls[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["terminated", "hung up"])
def test_a_signal_ends_the_session(number: int, stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = stack.program("ssh", f"[[ $* != *salloc* ]] || {{ echo $$ >{stack.root}/pid; exec sleep 60; }}")
    started = stack.root / "pid"

    class Early(subprocess.Popen[bytes]):
        """A process that is running before its constructor returns, at which time the signal arrives."""

        def __init__(self, argv: list[str], **options: Any) -> None:
            super().__init__(argv, **options)
            if "salloc" in " ".join(argv):
                while not started.exists() or not started.read_text():
                    time.sleep(0.01)
                os.kill(os.getpid(), number)

    monkeypatch.setattr(subprocess, "Popen", Early)
    before = signal.signal(number, lambda *_: pytest.fail("the session does not handle the signal"))
    try:
        code, _, _ = yard("run", "--", "sleep 60")
    finally:
        signal.signal(number, before)
    assert code == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert "salloc" in ssh.calls[-1]


FORWARDS = """
case $* in
  *salloc*) for _ in $(seq 100); do [[ ! -e {0}/forwarded ]] || exit 0; sleep 0.1; done; exit 9 ;;
  *squeue*) [[ -e {0}/asked ]] && echo yard-gpu-1; touch {0}/asked ;;
  *-L*) touch {0}/forwarded; exec sleep 60 ;;
esac
"""


def test_ports_are_forwarded_to_the_allocated_node(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yard.run.session._SECONDS_BETWEEN_QUERIES", 0.05)
    ssh = stack.program("ssh", FORWARDS.format(stack.root))
    code, _, err = yard("run", "--port", "8888", "--port", "6006", "--", "jupyter lab")
    assert code == 0
    assert "http://127.0.0.1:8888" in err
    assert "not forwarded" not in err
    [forward] = [call for call in ssh.calls if " -L " in call]
    assert "-L 127.0.0.1:8888:127.0.0.1:8888 -L 127.0.0.1:6006:127.0.0.1:6006" in forward
    assert "-o ControlPath=none" in forward
    assert " yard-gpu-1 " in f"{forward} "


def test_a_port_in_use_is_reported_at_the_end(stack: FakeStack) -> None:
    body = "case $* in *salloc*) sleep 2 ;; *squeue*) echo yard-gpu-0 ;; *-L*) echo 'in use' >&2; exit 255 ;; esac"
    stack.program("ssh", body)
    code, _, err = yard("run", "--port", "8888", "--", "true")
    assert code == 0
    assert "the ports were not forwarded: in use" in err


def test_a_session_without_a_scheduler_uses_a_free_node(without_slurm: FakeStack) -> None:
    found = commands("--port", "8888")
    assert found["argv"][4] == "yard-gpu-1"
    assert "salloc" not in found["argv"][5]
    assert {"-L", "yard-gpu-1"} <= set(found["forward"])


@pytest.mark.parametrize(("script", "code"), [('cat; echo "it\'s $((1 + 1))"; exit 3', 3), ("kill -9 $$", 137)])
def test_line_is_one_shell_command(script: str, code: int) -> None:
    line = ["bash", "-c", until_disconnected(script)]
    done = subprocess.run(line, input="input\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "input\nit's 2\n" if code == 3 else "")


def test_command_ends_with_its_children_when_the_output_is_closed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    supervisor = [sys.executable, str(ROOT / "yard" / "run" / "supervisor.py")]
    command = [*supervisor, "bash", "-c", f"sleep 300 & echo $! >{mark}; echo started; wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.stdout.close()
        assert process.wait(20) == 143
    wait_until(lambda: not alive(int(mark.read_text())))
