"""A stack's file, its Pulumi operations and machines, and the environment for simulated clouds.

Pulumi writes a random salt into the stack file that it uses. To keep the committed file unchanged, yard gives Pulumi a
copy in .trainyard/stacks. The plugins and the backend of simulated clouds are in .trainyard/offline. Therefore the
engine finds no real plugins there, and it cannot change real stacks, because they are in another backend.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from trainyard import project
from trainyard.errors import StackError
from trainyard.machines import HOST_INPUTS
from trainyard.project import installed
from yard.show import say, warn
from yard.stack import pulumi
from yard.stack.pulumi import StackInUse, backend_folder, backend_url, clear_stale, end_session, run_pulumi, state_file

SECRETS_KEYS = ("secretsprovider", "encryptedkey", "encryptionsalt")
"""The keys that Pulumi adds to a stack file."""
HOME = project.state() / "offline"
PLUGINS = {"azure-native": "pulumi-azure-native", "gcp": "pulumi-gcp", "command": "pulumi-command"}
"""Mapping from plugin to SDK package. A simulated plugin has the version of its SDK."""
PLAIN = ("--non-interactive",)
SHOW = ("--non-interactive", "--suppress-outputs")
"""Without --suppress-outputs, the long output `cluster` would push other messages off the screen."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
RunPulumi = Callable[[Sequence[str], Mapping[str, str], Path], int]
"""A function that runs pulumi with arguments, variables and a working folder, and returns the exit code."""
_POLL_SECONDS = 5.0


def stack_names() -> list[str]:
    """Return the names of all committed stacks, sorted."""
    files = (project.ROOT / project.stack_file("*")).parent.glob("Pulumi.*.yaml")
    return sorted(file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files)


def short_name(stack: str) -> str:
    """Return STACK for ORGANIZATION/PROJECT/STACK, because a stack file's name contains only STACK."""
    return stack.rpartition("/")[2]


def committed_text(stack: str) -> str:
    """Return the text of the committed stack file. Raises StackError."""
    name = project.stack_file(stack)
    try:
        return (project.ROOT / name).read_text()
    except FileNotFoundError:
        known = stack_names()
        fix = f"use one of {', '.join(known)}" if known else f"write it with `yard init {stack}`"
        raise StackError(f"no stack '{stack}': {name} does not exist. Fix: {fix}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StackError(f"{name} cannot be read: {error}. Fix: write it as UTF-8 text") from error


def platform_section(stack: str) -> dict[str, Any]:
    """Return the committed stack file's `platform` section, or an empty dictionary if the file is invalid."""
    try:
        section = yaml.safe_load(committed_text(stack))["config"]["trainyard:cluster"]["platform"]
    except (yaml.YAMLError, RecursionError, KeyError, TypeError):
        return {}
    return section if isinstance(section, dict) else {}


def copy_of(stack: str, home: Path | None = None) -> Path:
    """Return the path of a stack file's copy. `home` is the folder of another backend."""
    return (home or project.state()) / "stacks" / f"Pulumi.{stack}.yaml"


def refresh_copy(stack: str, home: Path | None = None, source: str | None = None, *, with_secrets: bool = True) -> Path:
    """Copy the committed file, keep the salt of the previous copy, and return the copy's path.

    `source` names the committed file if its name differs from the stack's. `with_secrets` must be False if the backend
    has a different passphrase, because that passphrase cannot decrypt the committed file's secrets.
    """
    text, copy = committed_text(source or stack), copy_of(stack, home)
    text = text if with_secrets else _without_secrets(text)
    added = added_keys(copy.read_text()) if copy.exists() else {}
    missing = {key: value for key, value in added.items() if key not in added_keys(text)}
    copy.parent.mkdir(parents=True, exist_ok=True)
    new = copy.with_suffix(".new")
    new.write_text(text.rstrip("\n") + "\n" + (yaml.safe_dump(missing) if missing else ""))
    new.replace(copy)
    return copy


def _without_secrets(text: str) -> str:
    """Return the text without the keys that Pulumi added and without encrypted values."""
    text = re.sub(rf"(?m)^({'|'.join(SECRETS_KEYS)}):.*\n?", "", text)
    return re.sub(r"(?m)^ +\S+:\n +secure: .*\n?", "", text)


def added_keys(text: str) -> dict[str, str]:
    """Return the keys that Pulumi added. For invalid YAML, the result is empty, because Pulumi reports the error."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return {}
    return {key: str(document[key]) for key in SECRETS_KEYS if key in document} if isinstance(document, dict) else {}


def simulated_environment(online: Mapping[str, str], home: Path = HOME, *, boots: bool = False) -> dict[str, str]:
    """Create the folders and programs that simulated clouds need, and return the environment variables.

    If `boots` is set, the simulated clouds start local virtual machines, and commands run on them.
    """
    try:
        _write_plugins(home)
        _prevent_log(home / "pulumi-home")
        (home / "state").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(
            f"{home}: {error.strerror}. Simulated clouds need this folder. Fix: make it writable"
        ) from error
    kept = {name: value for name, value in online.items() if name != "PULUMI_CONFIG_PASSPHRASE_FILE"}
    programs = installed("offline/programs")
    own = {"TRAINYARD_OFFLINE_COMMANDS": "record"}
    if boots:
        overlay = installed("offline/boot/overlay")
        own = {"TRAINYARD_OFFLINE_BOOT": "1", "PYTHONPATH": f"{overlay}:{overlay.parents[2]}"}
    return {
        **kept,
        "PATH": ":".join([*([] if boots else [str(programs / "recorded")]), str(programs), online["PATH"]]),
        "PULUMI_HOME": str(home / "pulumi-home"),
        "PULUMI_BACKEND_URL": f"file://{home / 'state'}?metadata=skip",  # see tools/setup/env.sh.
        "PULUMI_CONFIG_PASSPHRASE": "offline",  # This passphrase protects no real secret.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "TRAINYARD_OFFLINE": str(home / "clouds"),
        **own,
    }


def refuse_real_machines(stack: str) -> None:
    """Raise StackError if the platform has no simulation, because `up` would create real machines."""
    provider = platform_section(stack).get("provider")
    # The Pulumi program reports invalid stack files.
    if provider not in {None, "azure", "gcp"}:
        raise StackError(
            f"stack '{stack}': --offline simulates azure and gcp, but platform '{provider}' uses real machines. "
            "Fix: omit --offline, or only preview"
        )


def _require_packages() -> None:
    """Raise StackError if the virtual environment in Pulumi.yaml does not exist."""
    text = (project.ROOT / "Pulumi.yaml").read_text() if project.exists() else ""
    found = re.search(r"(?m)^ +virtualenv: *(\S+)", text)
    if found and not (project.ROOT / found[1]).exists():
        raise StackError(f"{project.ROOT / found[1]} does not exist. Fix: run `pulumi install` in {project.ROOT}")


def _write_plugins(home: Path) -> None:
    target = installed("offline/bin/plugin")
    for plugin, package in PLUGINS.items():
        name = f"pulumi-resource-{plugin}"
        program = home / "pulumi-home" / "plugins" / f"resource-{plugin}-v{version(package)}" / name
        # The program runs in this Python, which contains the packages that the plugin needs.
        text = f'#!/bin/sh\nexec {shlex.join([sys.executable, str(target), plugin])} "$@"\n'
        if program.is_file() and not program.is_symlink() and program.read_text() == text:
            continue
        program.parent.mkdir(parents=True, exist_ok=True)
        new = program.with_suffix(".new")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(program)


def _prevent_log(pulumi_home: Path) -> None:
    """Replace the folder of the engine's logs with a file, so that the engine writes no log.

    No option disables the log. It contains all requests and takes more than half of the time of a large preview.
    """
    logs = pulumi_home / "logs"
    if logs.is_dir():
        shutil.rmtree(logs)
    logs.touch()


class Workspace:
    """A stack and its operations, which never change the committed stack file.

    If `simulated` is set, the clouds are simulated, and `home` is the folder for Pulumi's files. If `boots` is set as
    well, local virtual machines take the place of the clouds' machines. `source` names the stack file if its name
    differs from the stack's.
    """

    def __init__(  # noqa: PLR0913  (keyword-only options)
        self,
        name: str,
        *,
        simulated: bool = False,
        boots: bool = False,
        home: Path = HOME,
        run: RunPulumi = run_pulumi,
        source: str | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise StackError(f"'{name}' is not a stack name. Fix: use letters, digits, '-', '_' and '.'")
        self.name = name
        self._source = source or name
        self.simulated = simulated
        self.boots = boots
        # A machine that is only recorded must not count as booted, so booted stacks have a state of their own.
        self.home = (home / "booted" if boots else home) if simulated else project.state()
        online = pulumi.environment(required=True)
        self.environment = simulated_environment(online, self.home, boots=boots) if simulated else online
        if url := backend_url(self.environment):
            # `pulumi stack` runs in a folder whose Pulumi.yaml contains no backend.
            self.environment["PULUMI_BACKEND_URL"] = url
        self.run = run
        self.backend = backend_folder(self.environment)

    def exists(self) -> bool:
        """Return whether the backend contains the stack. For a remote backend, the result is always True."""
        state_path = state_file(self.environment, self.name)
        return state_path is None or state_path.exists()

    def init(self, extra: Sequence[str] = ()) -> int:
        """Create the stack if it does not exist, and update the copy of its file. Returns pulumi's exit code."""
        committed_text(self._source)
        if self.backend is None:
            code = self._create("select", "--create", *extra)
        elif self.exists():
            code = 0
        else:
            copy_of(self.name, self.home).unlink(missing_ok=True)  # This copy contains a removed stack's salt.
            code = self._create("init", "--no-select", *extra)
        if code == 0:
            refresh_copy(self.name, self.home, self._source, with_secrets=not self.simulated)
        return code

    def _create(self, *arguments: str) -> int:
        # `pulumi stack` has no --config-file option, but writes the salt to the stack file's copy in self.home.
        self.home.mkdir(parents=True, exist_ok=True)
        text = f"name: {project.name()}\nruntime: python\nstackConfigDir: stacks\n"
        (self.home / "Pulumi.yaml").write_text(text)
        return self.run(["stack", *arguments, *PLAIN, "--stack", self.name], self.environment, self.home)

    def remove(self, extra: Sequence[str] = ()) -> int:
        """Remove the stack from the backend, and delete the copy of its file. Returns pulumi's exit code."""
        # In the checkout, `pulumi stack rm` would also delete the committed file, and clear the user's selection of any
        # stack. Source: pulumi/pulumi v3.250.0, pkg/cmd/pulumi/stack/stack_remove.go, read on 2026-11-24.
        command = ["stack", "rm", self.name, "--yes", "--preserve-config", *PLAIN, *extra]
        code = self.run(command, self.environment, self.home)
        if code == 0:
            copy_of(self.name, self.home).unlink(missing_ok=True)
        return code

    def preview(self, extra: Sequence[str] = ()) -> int:
        return self.operate("preview", (*SHOW, *extra))

    def operate(self, verb: str, arguments: Sequence[str]) -> int:
        """Run an operation with the stack file's copy. Returns pulumi's exit code."""
        _require_packages()
        self.clear_lock()
        code = self.init()
        if code:
            return code
        file = str(copy_of(self.name, self.home))
        return self.run([verb, "-s", self.name, "--config-file", file, *arguments], self.environment, project.ROOT)

    def write_environment(self) -> Path:
        """Write a shell script that sets the environment of a booted simulation, and return its path."""
        names = ("PULUMI_BACKEND_URL", "PULUMI_HOME", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_SKIP_UPDATE_CHECK")
        own = sorted(name for name in self.environment if name.startswith("TRAINYARD_OFFLINE"))
        lines = [f"export {name}={shlex.quote(self.environment[name])}\n" for name in (*names, *own)]
        lines.append(f"PATH={shlex.quote(str(installed('offline/programs')))}:$PATH\n")
        file = self.home / "environment"
        file.write_text("".join(["unset PULUMI_CONFIG_PASSPHRASE_FILE\n", *lines]))
        return file

    def clear_lock(self) -> None:
        """Remove the locks of pulumi processes that have ended, and end the plugins that they left running."""
        if self.backend is None:
            return
        for pid in clear_stale(self.backend, self.name):
            end_session(pid)  # run_pulumi starts pulumi as the leader of a session
            warn(f"stack '{self.name}': removed the lock of pulumi process {pid}, which has ended")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine in the stack's state. `created` is its creation time, which changes after a replacement."""

    urn: str
    created: str


def machines(stack: str, names: Collection[str]) -> dict[str, Machine]:
    """Return a mapping from host name to machine. Hosts without a machine in the stack's state are omitted."""
    found = {
        entry["inputs"][HOST_INPUTS[entry["type"]]]: Machine(urn=entry["urn"], created=str(entry.get("created", "")))
        for entry in _resources(stack)
        if entry["type"] in HOST_INPUTS
    }
    return {name: found[name] for name in names if name in found}


def urn_of(stack: str, name: str) -> str | None:
    """Return the URN of the resource `name`, or None if the stack's state does not contain it."""
    return next((entry["urn"] for entry in _resources(stack) if entry["urn"].rpartition("::")[2] == name), None)


def _resources(stack: str) -> list[dict[str, Any]]:
    """Return the resources in the stack's state. A resource whose deletion failed has the URN of its replacement."""
    done = pulumi.run(["stack", "export", "--stack", stack], pulumi.environment(required=True))
    if done.returncode:
        raise StackError(f"`pulumi stack export` of {stack} failed: {done.stderr.strip()}")
    found = json.loads(done.stdout)["deployment"].get("resources", ())
    return [entry for entry in found if not entry.get("delete")]


def wait_for_pulumi(stack: str) -> None:
    """Wait until no pulumi process uses the stack, and remove the lock of a process that has ended.

    If `yard roll` is killed, the `pulumi up` that it started keeps running.
    """
    shown = ""
    while _has_stack_file(stack):
        try:
            Workspace(stack).clear_lock()
            return
        except StackInUse as error:
            if not shown:
                say(f"waiting: {error}")
            shown = str(error)
        time.sleep(_POLL_SECONDS)


def replace_resources(stack: str, urns: Collection[str]) -> int:
    """Replace the resources that have these URNs, and return the exit code of `pulumi up`.

    Only new machines get the user-data and image of this version.
    """
    return _operate(stack, "up", ("--yes", "--skip-preview", *_replacing(urns)))


def preview_replacement(stack: str, urns: Collection[str]) -> int:
    """Print what `replace_resources` would change, and return the exit code of `pulumi preview`."""
    return _operate(stack, "preview", _replacing(urns))


def _replacing(urns: Collection[str]) -> Sequence[str]:
    return [word for urn in urns for word in ("--replace", urn)]


def _operate(stack: str, verb: str, arguments: Sequence[str]) -> int:
    if not _has_stack_file(stack):
        return pulumi.run_pulumi([verb, "-s", stack, *SHOW, *arguments], pulumi.environment(required=True))
    return Workspace(stack).operate(verb, [*SHOW, *arguments])


def _has_stack_file(stack: str) -> bool:
    # There are no stack files for qualified names (ORG/PROJECT/STACK).
    return "/" not in stack
