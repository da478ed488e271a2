"""A folder with a dpkg database and an archive of small packages, which the real apt-get and dpkg use."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.components.platforms.recording import ROOT

NODE = ROOT / "components" / "platforms" / "hosts" / "node"
TOOLS = ("apt-get", "dpkg", "dpkg-deb", "dpkg-query", "dpkg-scanpackages")
USABLE = all(map(shutil.which, TOOLS)) and os.geteuid() == 0
"""Whether this user can run dpkg, which requires root."""

ADD_USER = "#!/bin/sh\ngrep -q '^munge:' $DPKG_ROOT/etc/passwd || echo 'munge:x:998:998::/:' >>$DPKG_ROOT/etc/passwd\n"


def add_package(archive: Path, name: str, *fields: str, post_install: str = "", file: str = "") -> None:
    """Build a package with one file and add it to an archive."""
    made = archive.parent / "made" / name
    (made / "DEBIAN").mkdir(parents=True)
    head = [f"Package: {name}", "Version: 1", "Architecture: all", "Maintainer: t <t@t>", "Description: t"]
    (made / "DEBIAN" / "control").write_text("\n".join([*head, *fields, ""]))
    if post_install:
        (made / "DEBIAN" / "postinst").write_text(post_install)
        (made / "DEBIAN" / "postinst").chmod(0o755)
    content = made / (file or f"usr/share/{name}")
    content.parent.mkdir(parents=True)
    content.write_text(name)
    if content.parts[-2] == "etc":
        (made / "DEBIAN" / "conffiles").write_text(f"/etc/{content.name}\n")
    subprocess.run(["dpkg-deb", "-Zgzip", "-b", made, archive], check=True, capture_output=True)
    listed = subprocess.run(["dpkg-scanpackages", "."], cwd=archive, check=True, capture_output=True, text=True)
    (archive / "Packages").write_text(listed.stdout)


class Machine:
    """A machine. `root` is its root folder, and `ledger` is the folder that `remember` uses."""

    def __init__(self, folder: Path) -> None:
        self.root, self.ledger, self.archive = folder / "root", folder / "ledger", folder / "archive"
        for path in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "etc/apt", "tmp",
                     "var/cache/apt/archives/partial", "var/log/apt"):  # fmt: skip
            (self.root / path).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        self.ledger.mkdir()
        self.archive.mkdir()
        self.accounts = self.root / "etc/passwd"
        self.accounts.write_text("root:x:0:0::/:\nowner:x:1001:1001::/:\n")
        (self.root / "etc/group").write_text("root:x:0:\n")
        program = self.ledger / "remember"
        program.write_text((NODE / "remember").read_text().replace('"/etc/$kind"', f'"{self.root}/etc/$kind"'))
        program.chmod(0o755)
        self._write_apt_conf()
        (folder / "sources.list").write_text(f"deb [trusted=yes] file:{self.archive} ./\n")

    def _write_apt_conf(self) -> None:
        """Write apt.conf with the function from `lease`."""
        text = (NODE / "lease").read_text()
        function = text[text.index("watch_apt() {") : text.index("\n}\n", text.index("watch_apt() {")) + 3]
        subprocess.run(["bash", "-euc", f"ledger={self.ledger}\n{function}watch_apt"], check=True)

    def package(self, name: str, *fields: str, post_install: str = "", file: str = "") -> None:
        """Add a package to the archive."""
        add_package(self.archive, name, *fields, post_install=post_install, file=file)

    def apt(self, *words: str, ours: bool) -> subprocess.CompletedProcess[str]:
        """Run apt-get. With `ours`, apt-get uses the apt configuration of the bring-up."""
        state = self.root / "var/lib/dpkg/status"
        options = [
            f"Dir={self.root}", f"Dir::State::status={state}", "Dir::Etc::sourceparts=-", "Dir::Etc::parts=-",
            f"Dir::Etc::sourcelist={self.root.parent}/sources.list", f"DPkg::Options::=--root={self.root}",
            "DPkg::Options::=--force-script-chrootless", "APT::Sandbox::User=root",
            "Dir::Bin::Methods=/usr/lib/apt/methods",
        ]  # fmt: skip
        environment = {**os.environ, "DPKG_ADMINDIR": str(self.root / "var/lib/dpkg"), "LC_ALL": "C.UTF-8"}
        if ours:
            environment["APT_CONFIG"] = str(self.ledger / "apt.conf")
        argv = ["apt-get", "-q", "-y", *(word for option in options for word in ("-o", option)), *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def notes(self) -> set[str]:
        """Return the ledger's entries as "NAME STATE"."""
        file = self.ledger / "notes"
        return {line.replace("\t", " ") for line in file.read_text().splitlines()} if file.exists() else set()
