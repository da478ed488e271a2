"""The environment that set-up made for this checkout: its Pulumi backend, passphrase and programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".trainyard"
PROJECT = "trainyard"


class ToolError(Exception):
    """Something a person must put right before the tool can go on; the message says what and how."""


def load() -> dict[str, str]:
    """Return this process's environment with .trainyard/env.sh applied. Raises ToolError before set-up has run."""
    script = STATE / "env.sh"
    if not script.exists():
        raise ToolError(f"{script}: not there. Fix: run `make setup` first")
    done = subprocess.run(
        ["bash", "-c", '. "$1" && env -0', "bash", script], check=True, capture_output=True, text=True
    )
    return dict(entry.partition("=")[::2] for entry in done.stdout.split("\0") if entry)


def backend_folder(environment: dict[str, str]) -> Path | None:
    """Return the folder of a file:// backend, None when the stack's state is kept elsewhere."""
    url = environment.get("PULUMI_BACKEND_URL", "")
    if not url.startswith("file://"):
        return None
    return Path(os.path.expanduser(url.removeprefix("file://")))
