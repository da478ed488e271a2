"""A folder that represents a machine, and the programs in the machine's ledger."""

from __future__ import annotations

import shutil
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from tests.components.platforms.recording import ROOT

NODE = ROOT / "components" / "platforms" / "hosts" / "node"
HOSTS = "127.0.0.1 localhost\n127.0.1.1 mine\n\n192.0.2.1 theirs\n"


def load() -> Any:
    """Return the program `give-back` as a module."""
    loader = SourceFileLoader("give_back", str(NODE / "give-back"))
    spec = spec_from_loader("give_back", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


GIVE_BACK = load()


class Machine:
    """A folder that represents a machine, with a ledger."""

    def __init__(self, folder: Path) -> None:
        self.root, self.ledger = folder / "root", folder / "ledger"
        self.root.mkdir()
        self.ledger.mkdir()
        (self.ledger / "keep-files").write_text("no\n")
        (self.ledger / "notes").touch()
        shutil.copy(NODE / "remember", self.ledger)

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def remember(self, *arguments: str) -> None:
        """Run the ledger's program `remember` with options and with paths relative to the machine's folder."""
        words = [word if word.startswith("--") else f"{self.root}/{word}" for word in arguments]
        subprocess.run([self.ledger / "remember", *words], check=True)

    def give_back(self) -> list[str]:
        """Restore the files. Returns the kept folders."""
        ledger = GIVE_BACK.Ledger(self.ledger)
        kept = [path.relative_to(self.root).as_posix() for path in GIVE_BACK.restore_files(ledger)]
        for path, _ in ledger.paths("folder"):
            GIVE_BACK.remove_empty(path)
        return kept

    def files(self) -> dict[str, tuple[str, int]]:
        """Return all files and folders on the machine."""
        return {
            path.relative_to(self.root).as_posix(): (
                path.read_text() if path.is_file() else "",
                path.stat().st_mode & 0o7777,
            )
            for path in self.root.rglob("*")
        }
