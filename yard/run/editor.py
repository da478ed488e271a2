"""`yard code`: VS Code in a job, over an SSH server that runs as a step of the job.

The server is OpenSSH's sshd in inetd mode, so it listens on no port. srun starts it for each connection as the job
user, so everything that the editor starts has the job's limits and ends with the job.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from trainyard.errors import JobError, RemoteError
from yard.run.jobs import acting_for_owner, read_job
from yard.run.queue import Job
from yard.show import say, say_json
from yard.stack.load import USER_KEY, login_lines
from yard.stack.remote import Remote

_SECONDS = 60
_KEY = ".ssh/trainyard_job_host_key"
_MAKE_KEY = f'umask 077; cd; [ -e {_KEY}.pub ] || ssh-keygen -q -t ed25519 -N "" -C "" -f {_KEY}; cat {_KEY}.pub'
_SERVER = (
    f'exec /usr/sbin/sshd -i -q -f /dev/null -o HostKey="$HOME/{_KEY}" -o UsePAM=no -o PasswordAuthentication=no '
    "-o KbdInteractiveAuthentication=no -o AuthorizedKeysFile=/etc/trainyard/authorized_keys/%u "
    '-o "Subsystem=sftp internal-sftp" '
    '-o "SetEnv=SLURM_JOB_ID=$SLURM_JOB_ID SLURM_JOB_NODELIST=$SLURM_JOB_NODELIST '
    '${CUDA_VISIBLE_DEVICES+CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES}"'
)
"""Starts the server, which accepts only the job user's key, as the node's own sshd. SetEnv adds the job's variables."""


def open_editor(remote: Remote, job: int, folder: str | None, as_json: bool) -> None:
    """Write an SSH host entry for the job, and start VS Code with it.

    Raises JobError if the job is not running, and RemoteError if the connection fails.
    """
    found = read_job(remote, job)
    acting_for_owner(remote, found, reads=False)
    if found.state != "RUNNING":
        raise JobError(
            f"job {found.id} is {found.state}, not running. Fix: start a job first, for example `yard submit --time 8h "
            "-- sleep infinity`"
        )
    if remote.stack.cluster.scheduler != "slurm":
        raise JobError(
            "without Slurm, a connection cannot be part of a job. Fix: add `Include "
            f'"{remote.stack.ssh_config}"` to ~/.ssh/config, and connect the editor to the node {found.node_list}'
        )
    host, config = _write_entry(remote, found)
    done = subprocess.run(["ssh", "-F", str(config), host, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        cause = done.stderr.strip() or f"exit code {done.returncode}"
        raise RemoteError(f"cannot connect to job {found.id}: {cause}. Fix: run `yard doctor`")
    command = ["code", "--remote", f"ssh-remote+{host}", folder or found.run_dir]
    if as_json:
        say_json({"host": host, "config": str(config), "command": command})
    elif missing := _missing(config, host):
        say(f"{'; '.join(missing)}. Then run the command again, or connect another editor to the SSH host {host}")
    else:
        say(f"VS Code opens {command[-1]} on {host}; the connection ends with job {job}")
        subprocess.run(command, timeout=_SECONDS, check=False)


def _missing(config: Path, host: str) -> list[str]:
    """Return what the user must do before VS Code can connect."""
    shown = subprocess.run(["ssh", "-G", host], capture_output=True, text=True, check=False).stdout
    steps = []
    if f"{config.with_suffix('.known_hosts')}" not in shown:
        steps.append(f'add this line to the beginning of ~/.ssh/config: Include "{config.parent}/job-*.conf"')
    if shutil.which("code") is None:
        steps.append("install VS Code with the extension Remote - SSH and its command `code`")
    return steps


def _write_entry(remote: Remote, job: Job) -> tuple[str, Path]:
    """Write the SSH configuration of the job's host, and return its name and the file."""
    stack = remote.stack
    host = f"{stack.cluster.name}-job-{job.id}"
    known = stack.folder / f"job-{job.id}.known_hosts"
    known.write_text(f"{host} {remote.run(_MAKE_KEY).strip()}\n")
    step = ["srun", f"--jobid={job.id}", "--overlap", "--nodes=1", "--ntasks=1", "--unbuffered", "--quiet"]
    line = f"exec {shlex.join([*step, 'bash', '-c', _SERVER])}"
    proxy = shlex.join(["ssh", "-F", str(stack.ssh_config), remote.host(None), line]).replace("%", "%%")
    lines = (
        *login_lines(stack.user, None if stack.login else str(stack.folder / USER_KEY)),
        "IdentitiesOnly yes",
        f'UserKnownHostsFile "{known}"',
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
        "UpdateHostKeys no",
        "ControlPath none",
        "LogLevel ERROR",
        f"ProxyCommand {proxy}",
    )
    config = known.with_suffix(".conf")
    config.write_text(f"Host {host}\n" + "".join(f"  {text}\n" for text in lines))
    return host, config
