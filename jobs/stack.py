"""The stack's outputs and the ssh files made of them, kept in .trainyard/ssh/<stack>/ because pulumi takes a second."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from components.errors import ContractError
from jobs.errors import StackError
from jobs.facts import Cluster, cluster_of
from jobs.ssh_config import TUNNEL_LOG, control_path, known_hosts, ssh_config

SOCKETS = Path.home() / ".yard"
"""The sockets of shared ssh connections. A socket's path may have 107 bytes, and a checkout can lie deep."""
CHECKOUT = Path(__file__).resolve().parent.parent
PROJECT = "trainyard"
_FORMAT = 2
"""Raised when the files' layout changes, so that older ones are made anew."""

_PULUMI_SECONDS = 120
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_STACK_NAME = re.compile(f"{_PART}(/{_PART}){{0,2}}")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A deployed stack: its outputs, and the folder with `config`, `known_hosts` and `id_ed25519`."""

    name: str
    cluster: Cluster
    folder: Path

    @property
    def ssh_config(self) -> Path:
        """The file for `ssh -F`."""
        return self.folder / "config"


def load_stack(name: str, *, refresh: bool = False) -> Stack:
    """Return the stack from its kept files, or from pulumi when it was changed since or `refresh` is set.

    Raises StackError when pulumi does not answer, and ContractError when the outputs cannot be understood.
    """
    if not _STACK_NAME.fullmatch(name):
        raise StackError(f"'{name}' is not a stack name; use letters, digits, '.', '_' and '-'")
    folder = CHECKOUT / ".trainyard" / "ssh" / name.replace("/", "-")
    _own_folder(SOCKETS)
    environment = pulumi_environment()
    source = _source(environment, name)
    if not refresh and (kept := _kept(folder, source)) is not None:
        return Stack(name=name, cluster=cluster_of(kept), folder=folder)
    from components.outputs import read_outputs  # noqa: PLC0415  (pydantic: slow to import, needed here alone)

    outputs = _ask_pulumi(name, environment)
    try:
        checked = read_outputs(outputs.get("cluster")).model_dump(mode="json")
    except ContractError:
        # What is no longer deployed must not be reachable by old files either.
        forget(folder)
        raise
    _write(folder, source, outputs, checked)
    return Stack(name=name, cluster=cluster_of(checked), folder=folder)


def forget(folder: Path) -> None:
    """End the shared connections and remove the kept files of a stack; nothing to do when there are none."""
    config = folder / "config"
    control = re.search(r"(?m)^ *ControlPath (.+)%C$", config.read_text()) if config.is_file() else None
    for socket in glob(f"{control[1]}*") if control else ():
        command = ["ssh", "-F", "/dev/null", "-o", f"ControlPath={socket}", "-O", "exit", "any"]
        subprocess.run(command, capture_output=True, check=False)
    for name in ("config", "known_hosts", "id_ed25519", "outputs.json", TUNNEL_LOG):
        (folder / name).unlink(missing_ok=True)


def pulumi_environment() -> dict[str, str]:
    """Return the environment for pulumi: the checkout's own set-up where it has one, over the caller's."""
    environment = dict(os.environ)
    setup = CHECKOUT / ".trainyard" / "env.sh"
    if setup.is_file():
        environment.update(parse_exports(setup.read_text(), environment))
    return environment


def parse_exports(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the `export NAME=value` lines of a shell file set; $NAME in a value comes from before."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("export "):
            continue
        for word in shlex.split(line, comments=True)[1:]:
            name, equals, value = word.partition("=")
            if equals:
                found[name] = _expand(value, {**environment, **found})
    return found


def _expand(value: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: known.get(match[1] or match[2], ""), value)


def _source(environment: Mapping[str, str], name: str) -> str:
    """Return what tells one deployment from the next: state file, time and size. Empty: only pulumi knows."""
    url = urlparse(environment.get("PULUMI_BACKEND_URL", ""))
    if url.scheme != "file":
        return ""
    root = Path(f"{url.netloc}{url.path}".replace("~", str(Path.home()), 1))
    state = root / ".pulumi" / "stacks" / PROJECT / f"{name}.json"
    if not state.is_file():
        return f"{state}:absent"
    facts = state.stat()
    return f"{state}:{facts.st_mtime_ns}:{facts.st_size}"


def _kept(folder: Path, source: str) -> Any:
    try:
        kept = json.loads((folder / "outputs.json").read_text())
    except (OSError, ValueError):
        return None
    fresh = kept.get("format") == _FORMAT and kept.get("source") == source and (folder / "id_ed25519").is_file()
    return kept["cluster"] if fresh else None


def _ask_pulumi(name: str, environment: Mapping[str, str]) -> dict[str, Any]:
    command = ["pulumi", "stack", "output", "--json", "--show-secrets", "--non-interactive", "-s", name]
    try:
        done = subprocess.run(
            command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=_PULUMI_SECONDS, check=False
        )
    except FileNotFoundError:
        raise StackError("pulumi is not on PATH; run `make setup`, or install the Pulumi CLI") from None
    except subprocess.TimeoutExpired:
        raise StackError(f"pulumi did not answer within {_PULUMI_SECONDS} s; is its backend reachable?") from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.startswith("error:")] or done.stderr.splitlines()
        reason = words[-1].removeprefix("error: ") if words else "no reason given"
        raise StackError(f"pulumi cannot read stack '{name}': {reason}; deploy it first, or name another with --stack")
    outputs: dict[str, Any] = json.loads(done.stdout)
    return outputs


def _write(folder: Path, source: str, outputs: Mapping[str, Any], checked: dict[str, Any]) -> None:
    key = outputs.get("ssh_private_key")
    if not isinstance(key, str):
        raise StackError("the stack has no `ssh_private_key` output; run `pulumi up` on it")
    _own_folder(folder)
    place = str(folder)
    cluster = cluster_of(checked)
    kept = {"format": _FORMAT, "source": source, "cluster": checked}
    _replace(folder / "id_ed25519", key if key.endswith("\n") else key + "\n")
    _replace(folder / "known_hosts", known_hosts(cluster))
    _replace(folder / "config", ssh_config(cluster, place, control_path(str(SOCKETS), place)))
    # Last: its presence says that the others are there.
    _replace(folder / "outputs.json", json.dumps(kept, indent=1) + "\n")


def _own_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
