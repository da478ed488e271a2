"""Node files and parameters for NVIDIA's driver and for mirrors of package archives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from components.catalog import archives, driver_locks
from components.catalog.drivers import DriverLock, Package
from components.plan.plan import ClusterPlan, HostPlan


def driver_version(plan: ClusterPlan, host: HostPlan) -> str:
    """Return the expected version of the host's driver, or an empty string if it is unknown."""
    lock = _lock(plan, host)
    return plan.image.versions.get("driver", "") if lock is None else lock.driver


def driver_lock(plan: ClusterPlan, host: HostPlan) -> str | None:
    """Return driver.lock, the packages and files that a host with `driver: install` needs, or None for other hosts."""
    lock = _lock(plan, host)
    return None if lock is None else "".join(_lock_lines(lock))


def mirror_program(mirrors: Mapping[str, str], *, distribution: bool = False) -> str:
    """Return a `sed -E` program that replaces archive addresses with mirror addresses. Empty without mirrors.

    If `distribution` is set, it replaces only the addresses of the distribution's archives, otherwise all others.
    """
    known = archives()
    wanted = [name for name, archive in known.items() if archive.distribution == distribution and name in mirrors]
    chosen = {known[name].url: mirrors[name] for name in wanted}
    return ";".join(_substitution(pattern, url) for pattern, url in chosen.items())


def _lock(plan: ClusterPlan, host: HostPlan) -> DriverLock | None:
    return driver_locks().get(plan.image.os) if host.driver == "install" else None


def _lock_lines(lock: DriverLock) -> Iterator[str]:
    """Yield the lines of driver.lock, which cloud-init/files/usr/local/lib/trainyard/driver.sh reads."""
    yield f"driver {lock.driver}\nmodule {lock.module}\n"
    for archive in lock.archives:
        yield f"archive {archive.name} {archive.key} {archive.fingerprint} {archive.url or '-'} {archive.suite}\n"
    for kind, packages in (("package", lock.packages), ("nvswitch", lock.nvswitch), ("optional", lock.optional)):
        yield from (_package_line(kind, name, package) for name, package in packages.items())
    for path, text in lock.files.items():
        yield f"file {path}\n"
        yield from (f"| {line}\n" for line in text.splitlines())


def _package_line(kind: str, name: str, package: Package) -> str:
    return f"{kind} {name} {package.version} {package.sha256 or '-'}\n"


def _substitution(pattern: str, mirror: str) -> str:
    end = re.compile(pattern).groups + 1
    return rf"s%{pattern}([/[:space:]]|$)%{mirror}\{end}%g"
