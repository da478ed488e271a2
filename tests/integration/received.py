"""The files that a booted node received, and the files that the program renders for this node."""

from __future__ import annotations

import base64
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Any

import yaml

from components.cluster.bringup import _handover
from components.node.bundle import bundle_files, render_bundle
from components.node.files import BIRTH, BUNDLES, LIBRARY
from components.node.parameters import SharedFiles, node_env
from components.node.slurm import render_gres_conf, render_slurm_conf
from components.node.user_data import AccessKeys, admin_keys, render_user_data
from components.plan.plan import ClusterPlan, HostPlan, Role
from offline.boot import SIZE

HANDOVER = "/var/lib/trainyard/handover"
USER_DATA = "/var/lib/cloud/instance/user-data.txt"
UNITS = "/etc/systemd/system"
COLLECT = f"""
cd /
ls -d {USER_DATA} {LIBRARY} {BIRTH} {BUNDLES}/$(basename $(readlink {LIBRARY})) {HANDOVER} /etc/slurm/*.conf \
  /etc/trainyard/birth.env /etc/trainyard/node.env {UNITS}/trainyard-*.* {UNITS}/slurm*.d /etc/hosts /etc/hostname \
  /etc/passwd /etc/sudoers.d/*cloud-init* /etc/ssh/sshd_config.d/*cloud-init* /etc/default/instance_configs.cfg* \
  /etc/ssh/ssh_host_*_key.pub /var/lib/ops/.ssh/authorized_keys 2>/dev/null |
  tar -czf - --exclude=__pycache__ -T - 2>/dev/null | base64 -w0
"""
"""Prints an archive of the received files."""
_PLACEHOLDER = "ssh-ed25519 AAAA key"
_PRINCIPAL = re.compile(r"\b(?:admin|head)-[0-9a-f]{12}\b")
_KNOWN = {
    "disable_root", "final_message", "fqdn", "hostname", "manage_etc_hosts", "package_update", "package_upgrade",
    "ssh_genkeytypes", "ssh_pwauth", "users", "write_files",
}  # fmt: skip
"""The keys of the cloud-config whose effect `configured` states, or that have none."""


@dataclass(frozen=True)
class Stack:
    """A booted stack: its plan, where its shared files are, and the parts of its files that are random."""

    plan: ClusterPlan
    shared: SharedFiles
    authority: str
    """The public key of the stack's certificate authority."""
    host_keys: Mapping[str, str]
    """The SSH host keys by host name."""


def unpack(printed: str) -> dict[str, bytes]:
    """Return the files in COLLECT's archive by path. A link's content is its target."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(printed)), mode="r:gz") as archive:
        return {
            f"/{entry.name.lstrip('/')}": entry.linkname.encode() if content is None else content.read()
            for entry in archive
            if not entry.isdir()
            for content in [None if entry.issym() else archive.extractfile(entry)]
        }


def authority_in(user_data: str) -> str:
    """Return the key of the certificate authority in user-data."""
    found = re.search(r"restrict (ssh-ed25519 \S+(?: [^\s'\"]+)?)", user_data)
    assert found, "user-data has no certificate authority"
    return found[1]


def host_key_in(files: Mapping[str, bytes]) -> str:
    """Return the node's SSH host key that the bootstrap announces, without its comment."""
    return " ".join(files["/etc/ssh/ssh_host_ed25519_key.pub"].decode().split()[:2])


def rendered(stack: Stack, host: HostPlan, received: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the node's files as the program renders them. `received` contains the values of its secrets."""
    plan, keys = stack.plan, AccessKeys(authority=stack.authority)
    user_data, bundle = render_user_data(plan, host, keys), render_bundle(plan, stack.shared)
    active = f"{BUNDLES}/{bundle.digest}"
    members = {file.path: file.text for file in bundle_files(plan, stack.shared)}
    units = {path.removeprefix("units/"): text for path, text in members.items() if path.startswith("units/")}
    texts = {
        USER_DATA: user_data,
        LIBRARY: active,
        **_written(user_data),
        **{f"{active}/{path}": text for path, text in members.items()},
        **{f"{UNITS}/{path}": text for path, text in units.items()},
        "/etc/trainyard/node.env": node_env(plan, host, stack.shared),
    }
    files = {path: text.encode() for path, text in texts.items()}
    handover = _handed_over(stack, host, received)
    is_controller = host.role is Role.HEAD and plan.scheduler == "slurm"
    slurm = {path: text for path, text in handover.items() if path.startswith("slurm/")}
    return {
        **files,
        **{f"{HANDOVER}/{path}": content for path, content in handover.items()},
        **({f"/etc/{path}": content for path, content in slurm.items()} if is_controller else {}),
    }


def configured(stack: Stack, host: HostPlan) -> Mapping[str, Sequence[str]]:
    """Return the lines that cloud-init must have written to files that also have other lines."""
    text = render_user_data(stack.plan, host, AccessKeys(authority=stack.authority))
    config: dict[str, Any] = yaml.safe_load(text.partition("\n\n#cloud-config\n")[2].partition("\n--TRAINYARD\n")[0])
    assert config.keys() <= _KNOWN, "extend this function, so that it states the effect of each key"
    password = "yes" if config["ssh_pwauth"] else "no"
    lines: dict[str, list[str]] = {
        "/etc/hostname": [config["hostname"]],
        "/etc/passwd": [],
        "/etc/ssh/sshd_config.d/50-cloud-init.conf": [f"PasswordAuthentication {password}"],
    }
    lines |= {f"/etc/ssh/ssh_host_{kind}_key.pub": [] for kind in config["ssh_genkeytypes"]}
    for user in config["users"]:
        ids = f"{user['uid']}:{user['uid']}"
        lines["/etc/passwd"].append(f"{user['name']}:x:{ids}:{user['gecos']}:{user['homedir']}:{user['shell']}")
        if "sudo" in user:
            lines["/etc/sudoers.d/90-cloud-init-users"] = [f"{user['name']} {user['sudo']}"]
        if "ssh_authorized_keys" in user:
            lines[f"{user['homedir']}/.ssh/authorized_keys"] = user["ssh_authorized_keys"]
    for file in config.get("write_files", ()):
        lines[file["path"]] = file["content"].splitlines()
    return lines


def _written(user_data: str) -> dict[str, str]:
    """Return the files that the install script in user-data writes, by path."""
    body = user_data.partition("<<'END-OF-FILES'\n")[2].partition("END-OF-FILES\n")[0]
    _, *parts = re.split(r"^=== (/\S+)\n", body, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _handed_over(stack: Stack, host: HostPlan, received: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the hand-over as the head stores it, or a worker's part. Its random values are the received ones."""
    plan = stack.plan
    given = {path.removeprefix(f"{HANDOVER}/"): content for path, content in received.items()}
    password = re.search(rb"^StoragePass=(\S+)$", given.get("slurm/slurmdbd.conf", b""), re.MULTILINE)
    secrets = {
        "munge_key": base64.b64encode(given["munge.key"]).decode(),
        "cluster_key": given.get("cluster_key", b"").decode(),
        "cluster_certificate": given.get("cluster_key-cert.pub", b"").decode().rstrip("\n"),
        "database_password": password[1].decode() if password else "",
        "authority_public": stack.authority,
        "user_public": given["keys/trainer"].decode(),
        **dict.fromkeys(("admin_public", "cluster_public"), _PLACEHOLDER),
        "alert_webhook": None,
    }
    packed = _handover(plan, stack.host_keys, secrets, render_bundle(plan, stack.shared))
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as archive:
        files = {entry.name: content.read() for entry in archive if (content := archive.extractfile(entry))}
    # The principals of certificates are digests of keys that no node has.
    principals = list(dict.fromkeys(_PRINCIPAL.findall(given["keys/ops"].decode())))
    files["keys/ops"] = "".join(
        f"{line}\n" for line in admin_keys(plan.head.private_ip, stack.authority, *principals)
    ).encode()
    small = _resized(plan)
    files["slurm/slurm.conf"] = render_slurm_conf(small).encode()
    files["slurm/gres.conf"] = render_gres_conf(small).encode()
    if host.role is Role.WORKER:
        kept = {"bundle.sha256", "munge.key", "hosts", "known_hosts", "people"}
        return {path: text for path, text in files.items() if path in kept or path.startswith("keys/")}
    return files


def _resized(plan: ClusterPlan) -> ClusterPlan:
    """Return the plan with the size of booted machines, which only Slurm's configuration contains."""
    head, *workers = (replace(host, machine=host.machine.model_copy(update=SIZE)) for host in plan.hosts)
    return replace(plan, head=head, workers=tuple(workers))


def differences(expected: Mapping[str, bytes], received: Mapping[str, bytes]) -> list[str]:
    """Return a line for each file that is missing, differs, or is in a received folder although nobody rendered it."""
    folders = {BIRTH, str(expected[LIBRARY].decode()), HANDOVER}
    extra = [
        path
        for path in received
        if path not in expected and path != f"{HANDOVER}/complete" and any(path.startswith(f"{f}/") for f in folders)
    ]
    units = [path for path in received if path.startswith(f"{UNITS}/") and path not in expected]
    return [
        *(f"{path} is missing" for path in expected if path not in received),
        *(f"{path} differs" for path, content in expected.items() if received.get(path, content) != content),
        *(f"{path} is not rendered" for path in (*extra, *units)),
    ]


def explain(differing: Sequence[str], expected: Mapping[str, bytes], received: Mapping[str, bytes]) -> str:
    """Return the differences, and the changed lines of the files that differ."""
    lines = list(differing)
    for path in (line.removesuffix(" differs") for line in differing if line.endswith(" differs")):
        old, new = (files[path].decode(errors="replace").splitlines() for files in (expected, received))
        lines += unified_diff(old, new, f"rendered {path}", f"received {path}", lineterm="", n=0)
    return "\n".join(lines)
