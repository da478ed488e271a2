"""Runs `pulumi`. No other module in this project starts `pulumi` or reads .trainyard/env.sh."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from trainyard import checkout
from trainyard.errors import StackError
from yard.show import warn
from yard.stack.backend import is_chosen
from yard.stack.sessions import end_session

_SECONDS = 120.0
_OF_THE_BACKEND = ("PULUMI_BACKEND_URL", "PULUMI_HOME", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")
"""Variables that env.sh sets to use the backend in .trainyard."""
_MISSING_FIX = "Fix: run `make setup`, or install the Pulumi CLI"
_JOB_USER_FIX = (
    "Fix: for jobs, set TRAINYARD_OUTPUTS to the file that the cluster's operator sent you. For other commands, ask an "
    "operator, or install the Pulumi CLI and run yard in a clone"
)


def environment(*, required: bool = False) -> dict[str, str]:
    """Return the environment for pulumi. It includes the variables from .trainyard/env.sh if that file exists.

    If the user selected a backend for `pulumi` in this shell, the variables for the backend are unchanged. Raises
    StackError if bash cannot read the file, or if `required` is set and the file does not exist.
    """
    setup = checkout.ROOT / ".trainyard" / "env.sh"
    if not setup.is_file():
        if required:
            raise StackError(f"{setup} does not exist. Fix: run `make setup` first")
        return dict(os.environ)
    command = ["/bin/bash", "-c", '. "$1" && /usr/bin/env -0', "bash", str(setup)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"{setup} cannot be read: {done.stderr.strip()}; run `make setup` again")
    found = dict(entry.partition("=")[::2] for entry in done.stdout.split("\0") if entry)
    if not is_chosen(os.environ):
        return found
    kept = {name: os.environ[name] for name in _OF_THE_BACKEND if name in os.environ}
    return {name: value for name, value in found.items() if name not in _OF_THE_BACKEND} | kept


def run(
    words: Sequence[str],
    variables: Mapping[str, str],
    *,
    folder: Path | None = None,
    seconds: float | None = _SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run `pulumi WORDS` and return its output. The working directory is `folder` or, if it is None, the checkout or
    the current folder.

    Raises StackError if pulumi is missing or does not finish within `seconds`.
    """
    try:
        return subprocess.run(
            ["pulumi", *words],
            env=variables,
            cwd=folder or (checkout.ROOT if checkout.exists() else None),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise StackError(f"pulumi is not on PATH. {_MISSING_FIX if checkout.exists() else _JOB_USER_FIX}") from None
    except subprocess.TimeoutExpired:
        raise StackError(f"pulumi did not finish within {seconds:.0f} s; check that its backend is reachable") from None


def start(
    words: Sequence[str], variables: Mapping[str, str], folder: Path | None, output: int | None = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start `pulumi WORDS` in a new session. `output` receives stdout and stderr. With None, pulumi inherits the
    streams of this process.
    """
    return subprocess.Popen(
        ["pulumi", *words],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        text=True,
        start_new_session=True,
    )


def run_pulumi(
    words: Sequence[str],
    variables: Mapping[str, str],
    folder: Path | None = None,
    *,
    interrupted: Callable[[], object] = lambda: None,
) -> int:
    """Run pulumi and return its exit code, or 128 + N if signal N ended it. `interrupted` is called after each signal.

    pulumi runs in a new session, so that Ctrl-C in a terminal reaches only this process. This process then sends SIGINT
    to pulumi. After SIGINT, pulumi finishes its running operations and writes its state. A second SIGINT stops pulumi
    at once.
    """
    started: list[subprocess.Popen[str]] = []
    too_early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        warn("\ninterrupted: pulumi finishes its running operations; press Ctrl-C again to stop it immediately")
        interrupted()
        if started:
            started[0].send_signal(signal.SIGINT)
        else:
            too_early.append(number)

    # Shells start background jobs with SIGINT ignored, and pulumi would inherit this setting. If this process has a
    # handler for SIGINT, pulumi starts with the default action.
    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        started.append(start(words, variables, folder, output=None))
        if too_early:
            started[0].send_signal(signal.SIGINT)
        code = started[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in started:
            end_session(process.pid)
    return code if code >= 0 else 128 - code
