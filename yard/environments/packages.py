"""Resolves and downloads the packages that a job adds to its environment (`--with`), on the user's computer.

The nodes may have no access to a package index, so the packages are always downloaded here. uv does this with the
user's own settings, and verifies the hashes of all files. The cluster receives only the installed files, and neither
the index's address nor its password. The environment's own packages, such as torch, are never downloaded: for uv, each
of them is a wheel without files.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import BuildError, EnvironmentFileError, Problem
from yard.environments.build import PYTHON

EXAMPLE = "'transformers==4.57', ./mylib, mylib.whl, pyproject.toml or uv.lock"
_FILES = {".txt", ".in", ".toml"}
_GLIBC = "2_35"
"""The oldest glibc of the supported distributions: Ubuntu 22.04 has 2.35, and Debian 12 has 2.36."""
_PIN = re.compile(r"(?m)^([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?==([^\s;\\]+)[ \t]*(;[^\\\n]*)?")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
_UNREACHABLE = re.compile(r"Failed to fetch|error sending request|network was disabled|dns error|timed out", re.I)
_OPTIONS = re.compile(r"--no-binary|(?m:^\s*(-r|-c|--requirement|--constraint))")
_LOCKED = ("--frozen", "--no-default-groups", "--no-emit-local", "--no-header", "--no-annotate")
_NOT_SENT = {".lock", "direct_url.json", "uv_cache.json"}
"""Files in which uv records paths and times of this computer."""
_PIP = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS",
        "cert": "SSL_CERT_FILE"}  # fmt: skip
"""Mapping from pip's settings to the variables with which uv has the same settings."""


def is_path(package: str) -> bool:
    """Return whether a value of `--with` is a file or folder instead of a requirement."""
    return "/" in package or Path(package).suffix in {*_FILES, ".lock", ".whl"} or package in {".", ".."}


def needs_build(package: str) -> bool:
    """Return whether a value of `--with` is a folder or source archive, whose own program builds a wheel from it."""
    path = Path(package)
    is_lock = path.suffix == ".lock" and path.is_file()
    return is_path(package) and not is_lock and path.suffix not in {*_FILES, ".whl"}


def refuse_builds(file: str, packages: Sequence[str]) -> None:
    """Refuse the folders and archives that a job file names. Raises EnvironmentFileError, which lists them."""
    rule = "would run the folder's own build program on this computer, which a job file cannot request"
    fix = "read its pyproject.toml and build program, then name all values of `with` on the command line with --with"
    found = [Problem(path="with", rule=f"'{name}' {rule}", fix=fix) for name in packages if needs_build(name)]
    if found:
        raise EnvironmentFileError(file, found)


def pinned(requirements: str) -> list[tuple[str, str, str]]:
    """Return the names, versions and markers of the packages that a requirements file pins."""
    return [(_canonical(name), version, marker) for name, version, marker in _PIN.findall(requirements)]


@dataclass(frozen=True, kw_only=True)
class Addition:
    """Packages to add to the nodes' Python or to an environment, whose name in messages is `base`.

    `file` is the job's name in messages. `present` lists the base's packages as in `pinned`. `python` is the version of
    the nodes' Python ('3.12'), and `machine` is their processor ('x86_64'). `folder` is for temporary files.
    """

    file: str
    packages: Sequence[str]
    base: str
    present: Sequence[tuple[str, str, str]]
    python: str
    machine: str
    folder: Path

    def resolve(self) -> str:
        """Choose versions that fit the base, including those of dependencies. Return them in the format of a lock file.

        A wheel of this computer is identified by its content. Raises EnvironmentFileError if there are no such
        versions, and BuildError if the package index cannot be reached.
        """
        lines, files, wheels, locked = [], [], dict[str, Path](), dict[str, str]()
        for at, package in enumerate(self.packages):
            path = Path(package)
            if not is_path(package):
                lines.append(package)
            elif path.name == "uv.lock":
                files.append(str(self.folder / f"locked-{at}.txt"))
                self._uv("export", "--project", str(path.parent), *_LOCKED, "--output-file", files[-1])
                locked |= {entry.split()[0]: entry for entry in _entries(files[-1]) if "--hash=" in entry}
            elif path.suffix in _FILES:
                self._refuse_options(path)
                files.append(package)
            else:
                wheel = path if path.suffix == ".whl" else self._built(path, self.folder / f"wheel-{at}")
                name = wheel.name.split("-")[0]
                wheels[_canonical(name)] = wheel
                lines.append(f"{name} @ {wheel.resolve().as_uri()}")
        (self.folder / "packages.in").write_text("".join(f"{line}\n" for line in lines))
        self._refuse_options(self.folder / "packages.in")
        lock = self.folder / "compiled.txt"
        words = ("--generate-hashes", "--no-header", "--no-annotate", "--output-file", str(lock), *self._target())
        words = (*words, "--constraints", str(self._constraints()), str(self.folder / "packages.in"))
        self._uv("pip", "compile", *words, *files)
        found, installed = "", ""
        for entry in _entries(str(lock)):
            name = _canonical(re.split(r"[=\s\[]", entry, maxsplit=1)[0])
            if (self.folder / "present").as_uri() in entry:
                continue
            if not _PIN.match(entry) and name not in wheels:
                fix = "download the wheel, or clone the repository, and add the file or folder"
                raise self._refusal(f"{name} comes from a URL, which is not supported", fix)
            # The hashes in uv.lock apply instead of the index's.
            chosen = locked.get(entry.split()[0], entry)
            installed += chosen
            found += _by_content(name, wheels[name]) if name in wheels else chosen
        self._lock.write_text(installed)
        return found

    def download(self) -> Path:
        """Install the resolved packages into a folder for the nodes' Python, and return an archive of this folder."""
        target, archive = self.folder / "installed", self.folder / "packages.tar.gz"
        words = ("--target", str(target), "--no-deps", "--require-hashes", "--link-mode", "copy", *self._target())
        self._uv("pip", "install", *words, "-r", str(self._lock))
        for script in (target / "bin").glob("*"):
            script.write_bytes(script.read_bytes().replace(sys.executable.encode(), PYTHON.encode()))
        with tarfile.open(archive, "w:gz", compresslevel=1) as opened:
            opened.add(target, ".", filter=_sent)
        return archive

    @property
    def _lock(self) -> Path:
        return self.folder / "lock.txt"

    def _refuse_options(self, path: Path) -> None:
        """Refuse a requirements file that could make uv run the build program of a source package.

        `--no-binary NAME` has priority over `--only-binary :all:` (uv 0.13.9, tried 2026-11-26).
        """
        if path.name != "pyproject.toml" and path.is_file() and _OPTIONS.search(path.read_text(errors="replace")):
            rule = f"'{path}' contains --no-binary, -r or -c, which could start build programs on this computer"
            raise self._refusal(rule, "write all packages into one file, without these options")

    def _target(self) -> tuple[str, ...]:
        platform = f"{self.machine}-manylinux_{_GLIBC}"
        return ("--python-version", self.python, "--python-platform", platform, "--only-binary", ":all:")

    def _constraints(self) -> Path:
        """Write a wheel without files for each present package, so that uv neither changes nor downloads it."""
        (self.folder / "present").mkdir()
        lines = []
        for name, version, marker in self.present:
            if not _VERSION.fullmatch(version):
                continue  # some packages of the distribution have a version that no requirement can name
            wheel = f"{name.replace('-', '_')}-{version}"
            path = self.folder / "present" / f"{wheel}-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as opened:
                metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                opened.writestr(f"{wheel}.dist-info/METADATA", metadata)
                opened.writestr(f"{wheel}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
                opened.writestr(f"{wheel}.dist-info/RECORD", "")
            lines.append(f"{name} @ {path.as_uri()} {marker}\n")
        file = self.folder / "constraints.txt"
        file.write_text("".join(lines))
        return file

    def _built(self, source: Path, folder: Path) -> Path:
        """Build a wheel from a folder on this computer.

        uv builds it from a source distribution, because a wheel that is built in the folder could contain files of
        earlier builds.
        """
        self._uv("build", "--out-dir", str(folder), str(source))
        (wheel,) = folder.glob("*.whl")
        return wheel

    def _uv(self, *words: str) -> None:
        common = ("--python", sys.executable, "--no-python-downloads", "--no-progress", "--color", "never")
        if words[0] == "pip":
            # A file uv.toml or pyproject.toml in the current directory could set `no-binary`, as in _refuse_options.
            words = (*words, "--project", "/")
        command, variables = [uv_program(), *words, *common], {**os.environ, **_settings()}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        if done.returncode == 0:
            return
        # The output of a build program precedes uv's message. uv hides passwords in URLs.
        *log, message = re.split(r"(?m)^error: ", done.stderr.strip().partition("\nhint:")[0], maxsplit=1)
        cause = re.sub(r"\s+", " ", re.sub(r"\s*\n\s*cause: ", ": ", message.strip()))
        cause = cause.replace(f"`{self.folder}/packages.in`", "`with`")
        cause = cause.removeprefix("No solution found when resolving dependencies: ")
        if words[0] == "build" and "".join(log).strip():
            cause = f"{cause}: {' '.join(log[0].strip().splitlines()[-3:])}"
        if _UNREACHABLE.search(done.stderr):
            fix = "check the network, and the settings of uv or pip on this computer"
            raise BuildError(f"the packages were not resolved, because an index is unreachable: {cause}. Fix: {fix}")
        present = {name: version for name, version, _ in self.present}
        named = dict.fromkeys(_canonical(word) for word in re.split(r"[^\w.-]+", cause))
        if versions := [f"{name} {present[name]}" for name in named if name in present]:
            fix = "choose versions for these packages, or list all packages in a requirements file for --env"
            rule = f"{self.base} contains {', '.join(versions)}, which cannot be changed. {cause}"
            raise self._refusal(rule, fix)
        fix = "correct the name, the version or the file; if a package has no wheels, build one and add the file"
        raise self._refusal(cause, fix)

    def _refusal(self, rule: str, fix: str) -> EnvironmentFileError:
        return EnvironmentFileError(self.file, [Problem(path="with", rule=rule, fix=fix)])


def uv_program() -> str:
    """Return the path of uv, which is installed with yard. Raises BuildError if it is not."""
    folders = (sysconfig.get_path("scripts"), os.environ.get("PATH", ""))
    if program := shutil.which("uv", path=os.pathsep.join(folders)):
        return program
    raise BuildError("uv is not installed. Fix: install yard again, with its dependencies")


def _entries(lock: str) -> list[str]:
    """Return the lines of each package in a lock file."""
    return [entry for entry in re.split(r"(?m)^(?=[A-Za-z0-9])", Path(lock).read_text()) if entry[:1].isalnum()]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _by_content(name: str, wheel: Path) -> str:
    """Return a wheel's line in a lock file, with a hash of its files. A hash of the wheel includes its build time."""
    found = hashlib.sha256()
    with zipfile.ZipFile(wheel) as opened:
        for file in sorted(opened.namelist()):
            found.update(f"{file}\0{hashlib.sha256(opened.read(file)).hexdigest()}\n".encode())
    return f"{name}=={wheel.name.split('-')[1]} --hash=sha256:{found.hexdigest()}\n"


def _sent(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an archive's entry without the user's name, or None for a file that is not sent."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return None if Path(entry.name).name in _NOT_SENT else entry


def _settings() -> dict[str, str]:
    """Return the variables that give uv this computer's settings of pip, if the user has not configured uv."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    has_file = (config / "uv" / "uv.toml").exists() or Path("/etc/uv/uv.toml").exists()
    if has_file or any(re.fullmatch("UV_(.*INDEX.*|FIND_LINKS|CONFIG_FILE)", name) for name in os.environ):
        return {}
    pip = configparser.ConfigParser(interpolation=None, strict=False)
    pip.read([
        "/etc/pip.conf", Path.home() / "Library/Application Support/pip/pip.conf", Path.home() / ".pip/pip.conf",
        config / "pip/pip.conf", Path(sys.prefix) / "pip.conf", os.environ.get("PIP_CONFIG_FILE", os.devnull),
    ])  # fmt: skip
    found = {}
    for setting, variable in _PIP.items():
        own = pip.get("global", setting, fallback="")
        words = os.environ.get(f"PIP_{setting.replace('-', '_').upper()}", own).split()
        if setting == "find-links":  # unlike pip, uv refuses a folder that does not exist
            words = [word for word in words if "://" in word or Path(word).is_dir()]
        if words and variable not in os.environ:
            found[variable] = ("," if setting == "find-links" else " ").join(words)
    return found
