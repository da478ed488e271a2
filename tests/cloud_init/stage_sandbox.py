"""Runs a bring-up stage with recorded commands and with absolute paths moved into a folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STAGES = Path(__file__).parents[2] / "cloud-init" / "files" / "usr" / "local" / "lib" / "trainyard" / "stages"
_FOLDERS = (
    "etc|var|srv|home|shared|job|sys|proc/(?:devices|driver|sys|mounts)|opt|run|mnt|usr/(?:share|sbin|src|lib/systemd|lib/python3|lib/libnccl-net[.]so|local/gib|local/bin|local/share|bin/python\\b)"
    "|dev/(?:aperture_devices|disk|nvidia-uvm)|usr/local/lib/trainyard"
)
_ROOTS = f"/({_FOLDERS})"
_FUNCTIONS = """
set -euo pipefail
set -o errtrace
changed=0
handover=${TRAINYARD_TEST_HANDOVER:-} ledger=${TRAINYARD_TEST_LEDGER:-}
readonly kind=/etc/trainyard
log() { printf 'log %s\\n' "$*"; }
fail() { printf 'fail %s\\n' "$*"; exit 1; }
is_head() { [[ $TRAINYARD_ROLE == head ]]; }
has_slurm() { [[ ${TRAINYARD_SCHEDULER:-slurm} == slurm ]]; }
is_existing_host() { [[ -n ${TRAINYARD_TEST_LEDGER:-} ]]; }
remember() { true; }
put_file() {
  local new
  new=$(cat; echo .)
  [[ ! -e $1 || $(cat "$1"; echo .) != "$new" ]] || return 0
  mkdir -p "$(dirname "$1")"
  printf %s "${new%.}" >"$1"
  changed=$((changed + 1))
}
put_block() { mkdir -p "$(dirname "$1")"; cat >"$1"; }
own_host_line() { true; }
wait_for() { shift 2; "$@" || fail "would wait for: $*"; }
listens() { true; }
as_user() { env HOME="$3" "${@:4}"; }
as_trainer() { as_user trainer trainer /home/trainer "$@"; }
test() { [[ $1 == -[bc] ]] || builtin test "$@"; }
pause() { true; }
"""
"""Replacements for functions in stage.sh, without waits and with recorded calls."""
_SOURCE = re.compile(r"(?m)^ *source /usr/local/lib/trainyard/(\S+)$")
_SHARED = (
    ("stage.sh", re.compile(r"(?ms)^apt_update\(\) .*?(?=^life=)")),
    ("life.sh", re.compile(r"(?ms)^is_empty\(\) .*?(?=^# as_user)")),
    ("life.sh", re.compile(r"(?ms)^rank_key\(\) .*")),
)
"""Library functions that the sandbox uses unchanged."""


def function(file: Path, name: str) -> str:
    found = re.search(rf"(?ms)^{name}\(\) {{.*?^}}$", file.read_text())
    assert found, f"{file.name} has no function {name}"
    return found[0]


def bash(script: str, *arguments: str, **environment: str) -> str:
    """Run a script with the usual options, which must succeed. Return its output."""
    command = ["bash", "-c", f"set -euo pipefail\n{script}", "_", *arguments]
    env = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=30).stdout


@dataclass
class Ran:
    """Exit code, stdout lines, recorded commands with arguments, and stderr from a stage."""

    code: int
    output: list[str]
    commands: list[str]
    errors: str

    def calls(self, *starts: str) -> list[str]:
        """Return the recorded commands that start with one of these texts."""
        return [command for command in self.commands if command.startswith(starts)]

    def passed(self) -> Ran:
        """Return this result, which must be a success."""
        assert self.code == 0, (self.errors, self.output)
        return self

    def failure(self) -> str:
        """Return the message of a stage that must have failed."""
        assert self.code == 1, (self.errors, self.output)
        return self.output[-1]


@dataclass
class Sandbox:
    """A node. `root`: its root folder. `answers`: maps the start of a command line to "<exit code> <output>"."""

    root: Path
    recorded: tuple[str, ...] = ()
    answers: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    """Bash programs by name. Calls to these programs are not recorded."""

    def run(self, stage: str, **env: str) -> Ran:
        """Run a stage. `env`: the node's parameters, as names without the prefix TRAINYARD_."""
        bin_folder, log = self.root / ".bin", self.root / ".log"
        bin_folder.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "run" / "trainyard").mkdir(parents=True, exist_ok=True)
        (self.root / "proc" / "mounts").touch()
        for name in self.recorded:
            self._stub(bin_folder / name, log)
        for name, program in self.programs.items():
            (bin_folder / name).write_text(f"#!/bin/bash\n{program}\n")
            (bin_folder / name).chmod(0o755)
        text = self._moved(_SOURCE.sub(self._sourced, (STAGES / stage).read_text()))
        # _moved() finds only absolute paths that are written in full.
        assert '"/$' not in text, f"{stage} builds an absolute path from variables; write it in full"
        done = subprocess.run(
            ["bash", "-c", self._moved(_FUNCTIONS + _shared()) + text],
            capture_output=True, text=True, check=False, timeout=30,
            env={"PATH": f"{bin_folder}:{os.environ['PATH']}"} | {f"TRAINYARD_{key}": env[key] for key in env},
        )  # fmt: skip
        return Ran(done.returncode, done.stdout.splitlines(), log.read_text().splitlines(), done.stderr)

    def write(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)

    def read(self, path: str) -> str | None:
        file = self.root / path
        return file.read_text() if file.exists() else None

    def _sourced(self, line: re.Match[str]) -> str:
        return _SOURCE.sub(self._sourced, (STAGES.parent / line[1]).read_text())

    def _moved(self, text: str) -> str:
        return re.sub(rf"(?<![\w.}}/]){_ROOTS}(?=[/\s\"';:)]|$)", rf"{self.root}/\1", text)

    def _stub(self, file: Path, log: Path) -> None:
        cases = "".join(
            f"  {shlex.quote(start)}*) printf %s {shlex.quote(answer[2:])}; exit {answer[0]} ;;\n"
            for start, answer in self.answers.items()
        )
        file.write_text(
            f'#!/bin/bash\nroot={self.root}\nline="{file.name} ${{*//"$root"/}}"\nprintf \'%s\\n\' "$line" >>{log}\n'
            f'[[ $line != *-stdin* ]] || cat >/dev/null\ncase "$line" in\n{cases}esac\n'
        )
        file.chmod(0o755)


def _shared() -> str:
    text = ""
    for file, functions in _SHARED:
        found = functions.search((STAGES.parent / file).read_text())
        assert found, f"{file} does not match {functions.pattern}"
        text += found[0]
    return text
