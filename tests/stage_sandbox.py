"""Runs one stage of the bring-up as it is, but for absolute paths, which lie in a folder, and recorded commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

STAGES = Path(__file__).parent.parent / "cloud-init" / "files" / "usr" / "local" / "lib" / "trainyard" / "stages"
_FOLDERS = (
    "etc|var|srv|home|shared|job|sys|proc/(?:driver|sys)|opt|run|mnt|usr/(?:share|sbin|src|lib/systemd|local/gib)"
    "|dev/(?:aperture_devices|disk)"
)
_ROOTS = f"/({_FOLDERS})"
_WORDS = """
set -euo pipefail
set -o errtrace
changed=0
handover=${TRAINYARD_TEST_HANDOVER:-} ledger=${TRAINYARD_TEST_BORROWED:-}
say() { printf 'say %s\\n' "$*"; }
fail() { printf 'fail %s\\n' "$*"; exit 1; }
is_head() { [[ $TRAINYARD_ROLE == head ]]; }
has_slurm() { [[ ${TRAINYARD_SCHEDULER:-slurm} == slurm ]]; }
is_borrowed() { [[ -n ${TRAINYARD_TEST_BORROWED:-} ]]; }
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
own_name() { true; }
wait_for() { shift 2; "$@" || fail "would wait for: $*"; }
listens() { true; }
as_trainer() { env HOME=/home/trainer "$@"; }
apt_update() { apt-get -q update; }
test() { [[ $1 == -[bc] ]] || builtin test "$@"; }
pause() { true; }
"""
"""What stage.sh offers, without its waiting; `source` would set traps of the real node."""
_SHARED = re.compile(r"(?ms)^has\(\) .*?(?=^# as_trainer)")
"""The functions of stage.sh that are tested as they are."""


@dataclass
class Ran:
    """How a stage ended: what it said, and every recorded command with its arguments."""

    code: int
    said: list[str]
    commands: list[str]
    errors: str


@dataclass
class Sandbox:
    """`root` stands for the node's /. `answers` maps a command line's beginning to "<exit code> <output>"."""

    root: Path
    recorded: tuple[str, ...]
    answers: dict[str, str]

    def run(self, stage: str, **env: str) -> Ran:
        """Run a stage with the node's parameters (without their TRAINYARD_)."""
        bin_folder, log = self.root / ".bin", self.root / ".log"
        bin_folder.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        for name in self.recorded:
            self._stub(bin_folder / name, log)
        text = self._moved((STAGES / stage).read_text())
        text = re.sub(r"(?m)^source /usr/local/lib/trainyard/(\S+)$", self._sourced, text)
        # A path put together from variables would be this machine's own.
        assert '"/$' not in text, f"{stage} makes up an absolute path; write it whole"
        done = subprocess.run(
            ["bash", "-c", self._moved(_WORDS) + _shared() + text],
            capture_output=True, text=True, check=False, timeout=30,
            env={"PATH": f"{bin_folder}:{os.environ['PATH']}"} | {f"TRAINYARD_{key}": env[key] for key in env},
        )  # fmt: skip
        said, commands = done.stdout.splitlines(), log.read_text().splitlines()
        return Ran(code=done.returncode, said=said, commands=commands, errors=done.stderr)

    def _sourced(self, line: re.Match[str]) -> str:
        """Return the text of a shipped file that a stage sources, with its paths moved."""
        return self._moved((STAGES.parent / line[1]).read_text())

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
    found = _SHARED.search((STAGES.parent / "stage.sh").read_text())
    assert found, "stage.sh has lost its shared functions"
    return found[0]
