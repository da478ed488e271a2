"""Builds an environment on the head as the job user. This program needs only Python's standard library.

Usage: `build.py REQUEST ENVS`. REQUEST is a folder with `request.json` and `requirements.txt`, and ENVS is the folder
for all environments. If REQUEST contains ARCHIVE, an archive of installed packages, the environment consists of these
packages and of those of the environment `base`, which are not copied. The environment is built in a temporary folder in
ENVS. When the environment is complete, the folder gets its final name. The last printed line is the environment's path.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

MARKER = "environment.json"
"""The file that marks an environment as complete."""
IMPORTS = "imports.py"
"""The program that lists the files of an import (imports.py). It stays in the environment, because jobs run it."""
ARCHIVE = "packages.tar.gz"
PYTHON = "@PYTHON@"
"""Stands for the path of the environment's Python in the scripts in ARCHIVE."""
UNREACHABLE = "the package index cannot be reached"
_SILENCE = 15
"""Number of seconds without output after which the progress is printed."""
_HASHED = ["--require-hashes", "--no-deps"]
_VERSION = "{}.{}".format(*sys.version_info)


class Failure(Exception):
    """The environment cannot be built. The message contains the cause and a fix."""


def main(request_folder: Path, envs: Path) -> None:
    request = json.loads((request_folder / "request.json").read_text())
    envs.mkdir(exist_ok=True)
    target = envs / folder_name(request["name"], request["digest"])
    with locked(envs / f".{target.name}.lock"):
        if not (target / MARKER).exists():
            for rest in (target, *envs.glob(f".{target.name}.*")):  # from an interrupted build
                if rest.is_dir():
                    shutil.rmtree(rest)
            build(request, request_folder, target)
            list_imports(request_folder / IMPORTS, target, request.get("base"))
    print(target, flush=True)


def folder_name(name: str, digest: str) -> str:
    """Return an environment's folder name, which contains a hash of the definition and Python's version."""
    return f"{name}-{hashlib.sha256(f'{digest} {_VERSION}'.encode()).hexdigest()[:12]}"


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock, so that simultaneous requests build the same environment only once."""
    # Every user who can read a file can also lock it.
    with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "w") as opened:
        os.fchmod(opened.fileno(), 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("waiting for another build of this environment", flush=True)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def build(request: dict[str, Any], request_folder: Path, target: Path) -> None:
    begin = time.monotonic()
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        temporary.chmod(0o755)
        print(f"building {target} with Python {sys.version.split()[0]}", flush=True)
        # The environment does not contain pip, so that nobody adds packages that are not in the lock file.
        venv.create(temporary, system_site_packages=request["system_packages"], symlinks=True)
        if (request_folder / ARCHIVE).exists():
            add(request, request_folder / ARCHIVE, temporary)
        else:
            pip = Pip(temporary, request["packages"])
            install(pip, request, request_folder / "requirements.txt")
            fetch(pip, temporary / "src", request["checkouts"])
            for name in (".pip", ".tmp"):
                shutil.rmtree(temporary / name)
        relocate(temporary, target)
        seconds = round(time.monotonic() - begin)
        base = Path(request.get("base", "")).name or None
        facts = {"name": request["name"], "python": sys.version.split()[0], "built": int(time.time()),
                 "bytes": size_of(temporary), "seconds": seconds, "base": base}  # fmt: skip
        (temporary / MARKER).write_text(json.dumps(facts) + "\n")
        temporary.rename(target)
        print(f"built in {seconds} s, {facts['bytes'] / 1e9:.2f} GB", flush=True)
    except OSError as error:
        raise Failure(f"{error.strerror}: {error.filename}. {advice(error.errno)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def list_imports(program: Path, target: Path, base: str | None) -> None:
    """List the files that an import of PyTorch reads. Jobs also work without this list, so an error is not fatal."""
    shutil.copy(program, target / IMPORTS)
    arguments = ["record", str(target), *([base] if base else [])]
    command = [str(target / "bin" / "python3"), "-S", str(target / IMPORTS), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"the files of `import torch` are not listed: {why}", flush=True)


def add(request: dict[str, Any], archive: Path, folder: Path) -> None:
    """Unpack the archive's packages into a virtual environment, and let it use the packages of `base`."""
    count = request["packages"]
    print(f"unpacking {count} package{'' if count == 1 else 's'}", flush=True)
    packages = folder / "lib" / f"python{_VERSION}" / "site-packages"
    command = ["tar", "-xzf", str(archive), "-C", str(packages), "--no-same-owner"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        fix = advice(28) if "No space left" in done.stderr else "Fix: submit the job again"
        raise Failure(f"the packages cannot be unpacked ({done.stderr.strip().splitlines()[-1]}). {fix}")
    if (packages / "bin").is_dir():
        add_scripts(packages / "bin", PYTHON, folder / "bin" / "python3", folder)
        shutil.rmtree(packages / "bin")
    if base := request.get("base"):
        add_scripts(Path(base, "bin"), base, folder, folder)
        below = Path(base, "lib", f"python{_VERSION}", "site-packages")
        # Unlike a line with a path, addsitedir also reads the .pth files of the other environment.
        (packages / "base.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
        if Path(base, "src").is_dir():
            (folder / "src").symlink_to(Path(base, "src"))


def add_scripts(source: Path, old: str, new: Path, folder: Path) -> None:
    """Copy scripts that the environment lacks, and replace the path `old` in them."""
    for script in source.iterdir():
        path = folder / "bin" / script.name
        if not path.exists():
            path.write_bytes(script.read_bytes().replace(os.fsencode(old), os.fsencode(new)))
            shutil.copymode(script, path)


class Pip:
    """Installs packages into a virtual environment, with a copy of pip that is outside the environment."""

    def __init__(self, folder: Path, packages: int) -> None:
        self.folder, self.packages, self.done = folder, packages, 0
        self.python = str(folder / "bin" / "python3")
        (folder / ".tmp").mkdir()
        with zipfile.ZipFile(pip_wheel()) as archive:
            archive.extractall(folder / ".pip")

    def install(self, *arguments: str) -> None:
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-cache-dir"]
        # Two retries are enough to distinguish a busy index from an unreachable index.
        options += ["--retries", "2", "--timeout", "30", "--no-warn-script-location"]
        self.run([self.python, "-m", "pip", "install", *options, *arguments], "pip")

    def run(self, command: list[str], title: str) -> None:
        """Run a command, and print its progress. Raises Failure if the command fails."""
        # /tmp can be a small in-memory file system.
        own = {"TMPDIR": str(self.folder / ".tmp"), "PYTHONPATH": str(self.folder / ".pip"), "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        printed: list[str] = []
        assert process.stdout is not None  # noqa: S101  (a pipe; for the type checker)
        try:
            for line in self.lines(process.stdout):
                printed.append(line)
                if shown := self.progress(line):
                    print(shown, flush=True)
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                os.killpg(process.pid, 9)
            process.wait()
        if process.returncode:
            raise Failure(reason(printed, title))

    def lines(self, pipe: IO[bytes]) -> Iterator[str]:
        """Yield a pipe's lines. While the pipe is silent, print the environment's size every _SILENCE seconds."""
        rest = b""
        while True:
            if not select.select([pipe], [], [], _SILENCE)[0]:
                print(f"... {size_of(self.folder) / 1e9:.2f} GB", flush=True)
                continue
            read = os.read(pipe.fileno(), 65536)
            if not read:
                break
            *whole, rest = (rest + read).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
        if rest:
            yield rest.decode(errors="replace")

    def progress(self, line: str) -> str | None:
        """Return the progress message for a line of pip's output, or None if there is none."""
        if line.startswith("Installing collected packages"):
            return "installing the packages"
        found = re.match(r"\s+Downloading (\S+) ?(\(.*\))?", line)
        if not found or found[1].endswith(".metadata"):
            return None
        self.done += 1
        package = " ".join(found[1].rpartition("/")[2].removesuffix(".tar.gz").split("-")[:2])
        return f"[{self.done}/{max(self.done, self.packages)}] {package} {found[2] or ''}".rstrip()


def install(pip: Pip, request: dict[str, Any], requirements: Path) -> None:
    """Install the packages. Packages in `source` come last, because building them needs the other packages."""
    if not request["hashed"]:
        pip.install("-r", str(requirements))
        return
    if not request["locked"]:
        pip.install(*_HASHED, "-r", str(requirements))
        return
    wheels, sources = split(requirements.read_text(), request["source"])
    for name, text, options in (("wheels", wheels, ["--only-binary", ":all:"]),
                                ("sources", sources, ["--no-build-isolation"])):  # fmt: skip
        if text:
            file = pip.folder / ".tmp" / f"{name}.txt"
            file.write_text(text)
            pip.install(*_HASHED, *options, "-r", str(file))


def split(lock: str, source: list[str]) -> tuple[str, str]:
    """Split a lock file into the packages with wheels and the packages in `source`."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
    chosen = [entry for entry in entries if re.split(r"[=\s;\[]", entry, maxsplit=1)[0] in source]
    return "".join(entry for entry in entries if entry not in chosen), "".join(chosen)


def fetch(pip: Pip, folder: Path, checkouts: list[dict[str, Any]]) -> None:
    """Check out git repositories at their commits, and install those that are Python packages."""
    for checkout in checkouts:
        name, url, commit = checkout["name"], checkout["url"], checkout["commit"]
        if not shutil.which("git"):
            raise Failure("git is not installed on the head. Fix: install the package git there")
        path = folder / name
        path.mkdir(parents=True)
        print(f"{name} at {commit[:12]}", flush=True)
        for words in (["init", "-q"], ["fetch", "-q", "--depth", "1", url, commit], ["checkout", "-q", commit]):
            env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
            done = subprocess.run(["git", *words], cwd=path, capture_output=True, text=True, check=False, env=env)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                raise Failure(f"{name}: {url} at {commit} cannot be fetched ({why}). Fix: give the head access to this "
                              "address, or set git's `url.<base>.insteadOf` there")  # fmt: skip
        if checkout.get("install"):
            pip.install("--no-deps", "--no-build-isolation", str(path))


def pip_wheel() -> Path:
    """Return the path of the pip wheel that belongs to this Python.

    The distribution's wheel is tried last, because it supports only some versions of Python. For example, pip 23.0 from
    Debian 12 fails with Python 3.13.
    """
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR")]
    folders += [os.path.join(sysconfig.get_path("stdlib"), "ensurepip", "_bundled"), "/usr/share/python-wheels"]
    for folder in filter(None, folders):
        for wheel in sorted(Path(folder).glob("pip-*.whl")):
            return wheel
    fix = f"install the package python3-venv or python{_VERSION}-venv"
    raise Failure(f"Python {_VERSION} on the head has no pip. Fix: {fix}")


def relocate(temporary: Path, target: Path) -> None:
    """Replace the temporary folder's path in scripts and settings."""
    for file in (temporary / "pyvenv.cfg", *(temporary / "bin").iterdir()):
        if not file.is_symlink():
            content = file.read_bytes()
            if os.fsencode(temporary) in content:
                file.write_bytes(content.replace(os.fsencode(temporary), os.fsencode(target)))


def size_of(folder: Path) -> int:
    """Return the total size of a folder's files in bytes."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:  # pip removes temporary files
                continue
    return total


def advice(number: int | None) -> str:
    full = {28: "the shared file system is full", 122: "the quota is used up"}
    if number in full:
        return f"Cause: {full[number]}. Fix: remove environments with `yard env rm`, or enlarge the shared file system"
    return "Fix: see the cause"


def reason(printed: list[str], title: str) -> str:
    """Return the error message for a failed command, based on its output."""
    text = "\n".join(printed)
    errors = [line for line in printed if line.startswith("ERROR") and line != "ERROR: Exception:"]
    # If pip fails with an exception, the traceback's last line names the exception.
    last = errors[-1] if errors else printed[-1] if printed else title
    named = re.search(r"(?:satisfies the requirement|matching distribution found for) ([^\s;(]+)", text)
    collected = re.findall(r"(?m)^Collecting ([^\s;(]+)", text)
    package = named[1] if named else collected[-1] if collected else "the first package"
    if "No space left on device" in text:
        return f"{package}: No space left on device. {advice(28)}"
    if "quota exceeded" in text.lower():
        return f"{package}: disk quota exceeded. {advice(122)}"
    if "DO NOT MATCH THE HASHES" in text:
        wrong = re.search(r"(?m)^    ([\w.-]+[^\s:]*).*\n\s+Expected sha256", text)
        return (f"{wrong[1] if wrong else package}: the index serves a file whose hash is not in the lock. Fix: use an "
                "unchanged mirror of PyPI")  # fmt: skip
    if "connection broken by" in text or "Retrying (" in text:
        return (f"{package}: {UNREACHABLE}. Fix: set `mirrors: {{pypi: URL}}` in the stack file, "
                "or write `index-url` into pip.conf on the head")  # fmt: skip
    if "No matching distribution found" in text:
        return (f"{package}: the package index has no file for Python {_VERSION} on {os.uname().machine}. Fix: choose "
                "another version, or use a complete mirror of PyPI")  # fmt: skip
    return f"{package}: {last.removeprefix('ERROR: ')}. Fix: correct the cause, and run `yard env build` again"


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except Failure as failure:
        sys.exit(f"environment: {failure}")
    except OSError as error:
        sys.exit(f"environment: {error.strerror}: {error.filename}. {advice(error.errno)}")
