"""A copy of this project with a separate stack, for integration tests."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

ROOT = Path(__file__).parents[2]
HEAD, FIRST, SECOND, THIRD = "it-head", "it-gpu-0", "it-gpu-1", "it-gpu-2"
"""The machines of the shared cluster. Some tests add the third worker."""
AS_TRAINER = "sudo setpriv --reuid=trainer --regid=trainer --init-groups env -C /shared HOME=/home/trainer"
STAGES = "cloud-init/files/usr/local/lib/trainyard/stages"
_INTERVAL = 0.2
"""Seconds between two samples of a queue."""
_BOOT_ID = re.compile(r"[0-9a-f-]{36}")
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".trainyard", "__pycache__", ".*_cache", ".hypothesis", "build")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    seconds: float


class Project:
    """A copied checkout with its stack `local`. The developer's own stack is not changed."""

    name = "local"
    """The stack used by all commands."""
    plugins: ClassVar[set[str]] = set()
    """The pulumi-command plugins that all projects have used: "official VERSION" or "replacement"."""
    official: ClassVar[str | None] = None
    """Pulumi home with the official pulumi-command plugin, which all projects must use, or None."""

    def __init__(self, folder: Path, cluster: str, port_base: int) -> None:
        self.copy(folder)
        self.edit(lambda spec: spec.update(name=cluster))
        self.edit(lambda spec: spec["platform"].update(ssh_port_base=port_base))

    def copy(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
        (folder / ".venv").symlink_to(ROOT / ".venv")

    @property
    def stack_file(self) -> Path:
        return self.folder / "stacks" / f"Pulumi.{self.name}.yaml"

    def edit(self, change: Callable[[dict[str, Any]], object]) -> None:
        document = yaml.safe_load(self.stack_file.read_text())
        change(document["config"]["trainyard:cluster"])
        self.stack_file.write_text(yaml.safe_dump(document, sort_keys=False))

    def setup(self) -> None:
        """Run the set-up in the copy. The copy shares the cached tools."""
        self.run("bash", "tools/setup.sh", timeout=600)
        plugin = (self.folder / ".trainyard" / "command-plugin").read_text().strip().replace("stand-in", "replacement")
        self.plugins.add(plugin)
        assert plugin.startswith("official") or not self.official, f"the set-up chose the {plugin} for pulumi-command"

    def start(self, *command: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start a command in the copy, in a new session. `stdin`: as in subprocess.Popen."""
        path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TRAINYARD_STACK": self.name}
        if self.official:
            environment["PULUMI_HOME"] = self.official  # for the set-up, which uses the plugin in this folder
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, stdin=stdin,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, *command: str, timeout: float = 300, check: bool = True) -> Done:
        """Run a command in the copy. pytest shows its output if the test fails."""
        begin = time.monotonic()
        process = self.start(*command)
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 15)
            out, _ = process.communicate(timeout=60)
            raise AssertionError(f"{' '.join(command)} did not end within {timeout} s:\n{out}") from None
        except KeyboardInterrupt:
            # The command runs in a different session and did not receive SIGINT. Without SIGINT, the command would keep
            # the lock on the stack.
            os.killpg(process.pid, 2)
            process.communicate(timeout=120)
            raise
        done = Done(process.returncode, out, time.monotonic() - begin)
        sys.stdout.write(f"$ {' '.join(command)}   [{done.seconds:.1f} s, exit {done.code}]\n{out}\n")
        assert not check or done.code == 0, f"{' '.join(command)} ended with {done.code}:\n{out[-3000:]}"
        return done

    def stack(self, verb: str, *more: str, timeout: float = 600, check: bool = True) -> Done:
        """Run a Pulumi command on the stack, as `make` does."""
        done = self.run(sys.executable, "-m", "tools.stack", verb, self.name, *more, timeout=timeout, check=check)
        assert "AcceptEnv" not in done.out, "pulumi-command warns that sshd refuses an environment variable"
        return done

    def yard(self, *arguments: str, timeout: float = 300, check: bool = True) -> Done:
        return self.run(sys.executable, "-m", "yard", *arguments, timeout=timeout, check=check)

    def yard_json(self, *arguments: str, timeout: float = 300) -> Any:
        """Return the document of a command. It is the last line, because `run` also returns the progress on stderr."""
        return json.loads(self.yard(arguments[0], "--json", *arguments[1:], timeout=timeout).out.splitlines()[-1])

    def on(self, node: str, command: str, timeout: float = 120, check: bool = True) -> str:
        """Run a shell command on a node as the admin user, with the generated SSH configuration."""
        return self.yard("ssh", node, "--admin", "--", command, timeout=timeout, check=check).out

    def as_root(self, node: str, script: str, timeout: float = 300, check: bool = True) -> str:
        return self.on(node, f"sudo bash -c {shlex.quote(script)}", timeout=timeout, check=check)

    def submit(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.yard_json("submit", *arguments)
        return answer

    def follow(self, job: object, seconds: float = 400, check: bool = True) -> str:
        return self.yard("logs", str(job), "-f", timeout=seconds, check=check).out

    def job_field(self, job: object, field: str) -> str:
        """Return a field from `scontrol show job`, or an empty string if slurmctld no longer lists the job."""
        output = self.on(HEAD, f"scontrol -o show job {job} 2>/dev/null || true")
        found = re.search(rf"\b{field}=(\S+)", output)
        return found.group(1) if found else ""

    def sleeper(self) -> str:
        """Submit a job that sleeps on one worker, wait until it runs, and return its id."""
        (self.folder / "sleeper.yaml").write_text("name: sleeper\nnodes: 1\ntime: 30m\nrun: sleep 1500\n")
        job = str(self.submit("sleeper.yaml")["id"])
        wait_until("the job to run", 120, lambda: self.queued(job) == "RUNNING")
        return job

    def job_state(self, job: Mapping[str, Any]) -> str:
        """Return a job's state as `yard ps` shows it."""
        return next(str(row["state"]) for row in self.yard_json("ps") if row["id"] == job["id"])

    def queued(self, job: str) -> str:
        """Return the state of a job in Slurm's queue, or an empty string if the job has left the queue."""
        return self.on(HEAD, f"squeue -h -j {job} -o %T 2>/dev/null || true").strip()

    def states(self) -> dict[str, str]:
        # The connection for multiplexing can be older than Slurm on the head. Its sessions then lack SINFO_ALL.
        lines = self.on(HEAD, "sinfo -a -h -N -o '%N %T'").split("\n")
        return dict(line.split() for line in lines if line.startswith("it-"))

    def shown(self, node: str) -> str:
        return self.on(HEAD, f"sinfo -a -h -N -n {node} -o '%T|%E'").strip()

    def in_service(self, node: str) -> bool:
        return self.shown(node).startswith(("idle|", "mixed|"))

    def health(self, node: str) -> dict[str, Any]:
        """Return the node's verdicts, their history and the last results of its checks."""
        found: dict[str, Any] = json.loads(self.on(node, "sudo trainyard-health status"))
        return found

    def verdicts(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.health(node)["verdicts"]
        return found

    def wait_idle(self, seconds: float = 120) -> None:
        wait_until("idle workers", seconds, lambda: set(self.states().values()) == {"idle"})

    def wait_ready(self, node: str, seconds: float = 240) -> None:
        status = "cat /var/lib/trainyard/status.json"
        wait_until(f"{node} to be ready", seconds, lambda: '"state":"ready"' in self.on(node, status, check=False))

    def boot_id(self, node: str) -> str:
        """Return the id of a node's boot, or an empty string if the node does not respond."""
        output = self.on(node, "cat /proc/sys/kernel/random/boot_id", check=False).strip()
        return output if _BOOT_ID.fullmatch(output) else ""

    def reboot(self, node: str) -> None:
        before = self.boot_id(node)
        assert before, f"{node} does not respond"
        self.on(node, "sudo systemctl reboot", check=False)
        wait_until(f"{node}'s next boot", 240, lambda: self.boot_id(node) not in {"", before})

    def kill(self, node: str) -> int:
        """Kill a machine and wait until its process has ended. Return the process id."""
        victim = self.pid(node)
        os.kill(victim, signal.SIGKILL)
        wait_until("the VM's end", 20, lambda: not alive(victim), 0.5)
        return victim

    def replace(self, urn: str, timeout: float = 600) -> None:
        """Replace a resource. `urn`: the end of its URN, after the project's name."""
        self.stack("up", "--replace", f"urn:pulumi:local::trainyard::{urn}", timeout=timeout)

    def down(self, check: bool = True) -> None:
        self.run("python", "-m", "tools.down", timeout=300, check=check)

    def pid(self, node: str) -> int:
        found = list((self.folder / ".trainyard" / "run" / "local").rglob(f"{node}/*pid*"))
        assert found, f"no pid file for {node}"
        return int(found[0].read_text())


def wait_until(what: str, seconds: float, condition: Callable[[], bool], pause: float = 2.0) -> None:
    """Poll a condition. Fails after the given number of seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(pause)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


QueueTime = Callable[[str, float, float], float]
"""Returns the seconds that a machine has waited between two times of time.monotonic()."""


@contextmanager
def recorded_queue(names: Iterable[str], pid: Callable[[str], int]) -> Iterator[QueueTime]:
    """Record how long the virtual processor of each machine waits for a physical processor of this computer.

    While the virtual processor waits, no program in the machine runs. Tests subtract this time from measured durations.
    Each machine must have one virtual processor. `pid` returns the process id of a machine.
    """
    samples: Mapping[str, list[tuple[float, float]]] = {name: [] for name in names}
    end = threading.Event()

    def record() -> None:
        while not end.wait(_INTERVAL):
            for name, found in samples.items():
                # The machine may not have started yet, or may have ended.
                with suppress(AssertionError, OSError, ValueError):
                    found.append((time.monotonic(), _queued(pid(name))))

    def waited(name: str, when: float) -> float:
        return max((total for at, total in samples[name] if at <= when), default=0.0)

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    try:
        yield lambda name, begin, until: waited(name, until) - waited(name, begin)
    finally:
        end.set()
        thread.join()


def _queued(pid: int) -> float:
    """Return how many seconds the busiest thread of a process has waited for a processor.

    Source: Documentation/scheduler/sched-stats.rst of Linux, "/proc/<pid>/schedstat": time spent on the cpu, and time
    spent waiting on a runqueue, in nanoseconds (read 2026-11-22).
    """
    threads = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    _, waited = max((int(run), int(wait)) for run, wait, _ in threads)
    return waited / 1e9
