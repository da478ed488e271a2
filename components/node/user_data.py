"""Renders a host's user-data: a MIME message with a #cloud-config and the install script.

User-data contains no secrets, because the cloud account and the metadata service reveal it. User-data contains only the
files that a node needs before the bundle (bundle.py) arrives. cloud-init/ contains the text for all hosts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from ipaddress import IPv4Address
from typing import Any

import yaml

from components.catalog import images
from components.node.files import BIRTH, MIRRORS, START, NodeFile, files_for, mime_message, render_install
from components.node.parameters import ON_HEAD, SharedFiles, birth_env, kind_files, storage_env
from components.plan.plan import ClusterPlan, HostPlan, Role
from trainyard.errors import CatalogError
from trainyard.project import installed

ADMIN_USER, ADMIN_UID, ADMIN_HOME = "ops", 1500, "/var/lib/ops"
"""The user for provisioning. The user's home is not under /home, because workers mount /home over NFS."""
JOB_USER, JOB_UID, JOB_HOME = "trainer", 2000, "/home/trainer"
"""The user that runs jobs. NFS and Slurm need the same uid on all nodes."""

_FOLDER = installed("cloud-init")


class Login(Enum):
    """Who logs in as ADMIN_USER with a certificate. The value is a principal of each certificate."""

    ADMIN = "admin"
    HEAD = "head"

    def principal(self, public: str) -> str:
        """Return the principal that only the certificate of the key `public` has, for example "admin-0f3a5b7c9d1e".

        After the hand-over, nodes accept only this principal. Therefore they refuse a rotated key's former certificate,
        although it has not expired.
        """
        return f"{self.value}-{hashlib.sha256(public.split()[1].encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class AccessKeys:
    """The OpenSSH public keys in user-data. No other key is there, so that rotating it does not change user-data."""

    authority: str
    """The key of the certificate authority, which signs the keys of the admin and of the head."""
    former_cluster: str = ""
    """The head's key in the user-data of machines from an older version, or ""."""


def admin_keys(
    head: IPv4Address, authority: str, admin: str = Login.ADMIN.value, from_head: str = Login.HEAD.value
) -> tuple[str, str, str]:
    """Return the lines of ADMIN_USER's authorized_keys: for the provisioner, the admin, and the head.

    `head` is the head's private address. `admin` and `from_head` are the principals that certificates need. sshd tries
    every line (openssh-portable@12fe929b:auth2-pubkeyfile.c, auth_check_authkeys_file; read 2026-11-26).
    """
    return (
        # The provisioner only runs commands on the head (components/keys.py).
        f"restrict {authority}",
        f'cert-authority,principals="{admin}" {authority}',
        # The head's certificate works only from the head, and only to run commands.
        f'restrict,from="{head}",cert-authority,principals="{from_head}" {authority}',
    )


@dataclass(frozen=True, kw_only=True)
class Birth:
    """A new machine's user-data and identity."""

    user_data: str
    identity: str
    """A digest of the facts that never change while the machine exists."""


def birth_of(plan: ClusterPlan, host: HostPlan, keys: AccessKeys, shared: SharedFiles = ON_HEAD) -> Birth:
    """Return the host's user-data and identity. A different identity requires a new machine.

    The identity consists of names, addresses, the certificate authority, and the location of the shared files, which
    running nodes have mounted. Other changes to user-data do not require a new machine.
    """
    known = [keys.authority, keys.former_cluster] if keys.former_cluster else [keys.authority]
    facts = [birth_env(plan, host), known, storage_env(host, shared)]
    identity = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return Birth(user_data=render_user_data(plan, host, keys), identity=identity)


def render_user_data(plan: ClusterPlan, host: HostPlan, keys: AccessKeys) -> str:
    """Return the host's user-data, which does not depend on other workers."""
    return mime_message(cloud_config(plan, host, keys), "trainyard-install", install_script(plan, host))


def cloud_config(plan: ClusterPlan, host: HostPlan, keys: AccessKeys) -> str:
    """Return the #cloud-config, which is kept short because cloud-init parses it a dozen times. Raises CatalogError."""
    # Without `fqdn`, cloud-init would add the domain from the cloud's metadata.
    own = {"hostname": host.name, "fqdn": host.name}
    shared = _shared(host.role, plan.image.name)
    return f"#cloud-config\n{shared}{_dump(own)}{_users(plan.head.private_ip, host.role, keys)}"


def install_script(plan: ClusterPlan, host: HostPlan, begin: str = START) -> str:
    """Return the script that root runs to write the node's files and start its bring-up (`begin`)."""
    shipped = _shipped(host.machine.fabric, plan.containers, host.driver, bool(plan.mirrors))
    kind = (replace(file, path=f"{BIRTH}/{file.path}") for file in kind_files(plan, host, None))
    own = NodeFile("/etc/trainyard/birth.env", birth_env(plan, host))
    return render_install([own, *kind, *shipped], begin)


@cache
def _shipped(fabric: str, containers: str, driver: str, has_mirrors: bool) -> tuple[NodeFile, ...]:
    """Return the shipped files in user-data. The files are cached, because they are the same for most hosts."""
    return tuple(
        NodeFile(f"{BIRTH}/{file.member}", file.text, file.executable)
        for file in files_for(fabric, containers, driver)
        if file.is_birth or (has_mirrors and file.member == MIRRORS)
    )


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two cloud-configs and concatenate their lists. Raises CatalogError for other repeated keys."""
    merged = {**first, **second}
    for key in first.keys() & second.keys():
        if not (isinstance(first[key], list) and isinstance(second[key], list)):
            raise CatalogError(f"several cloud-init fragments set {key}; keep it in one of them")
        merged[key] = [*first[key], *second[key]]
    return merged


def host_users(head: IPv4Address, role: Role, keys: AccessKeys) -> list[dict[str, Any]]:
    """Return the cloud-config of the admin and the job user."""
    is_worker = role is Role.WORKER
    common = {"shell": "/bin/bash", "lock_passwd": True}
    admin: dict[str, Any] = common | {
        "name": ADMIN_USER,
        "uid": ADMIN_UID,
        "homedir": ADMIN_HOME,
        "gecos": "Trainyard administrator",
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": list(admin_keys(head, keys.authority)),
    }
    job_user = common | {"name": JOB_USER, "uid": JOB_UID, "homedir": JOB_HOME, "gecos": "Trainyard jobs"}
    # Workers mount a shared /home, so cloud-init must not create a home there.
    home = {"no_create_home": True} if is_worker else {}
    return [admin, job_user | home]


@cache
def _users(head: IPv4Address, role: Role, keys: AccessKeys) -> str:
    """Return the users as YAML. The text is cached, because the YAML emitter is the slowest part of rendering."""
    return _dump({"users": host_users(head, role, keys)})


@cache
def _shared(role: Role, image: str) -> str:
    """Return the YAML of the cloud-config that is the same for all hosts with this role and image."""
    base, own = (yaml.safe_load((_FOLDER / f"{name}.yaml").read_text()) or {} for name in ("base", role.value))
    merged = merge(merge(base, own), images()[image].cloud_config)
    generated = merged.keys() & {"hostname", "fqdn", "users"}
    if generated:
        raise CatalogError(
            f"cloud-init/*.yaml and the image's cloud_config set {', '.join(sorted(generated))}, "
            "which are generated for each host; remove them"
        )
    return _dump(merged)


def _dump(value: Any) -> str:
    # With the Python emitter, the output does not depend on whether libyaml is installed.
    text: str = yaml.safe_dump(value, sort_keys=True, width=4096, allow_unicode=True)
    return text
