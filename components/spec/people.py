"""The section `users:` of a stack file: the people who use the cluster, and the ids of their accounts and groups."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from components.spec.model import Model
from trainyard.errors import RuleError

PEOPLE = "people"
"""The primary group of all people, and the Slurm account of the people without `accounts`."""
FIRST_UID, LAST_UID = 10_000, 49_999
"""The uids of people. The range is below 60000, the last uid of useradd, and below the ranges that useradd reserves for
user namespaces (/etc/login.defs of Debian 13: UID_MAX, SUB_UID_MIN; read 2026-11-25)."""
FIRST_GID, LAST_GID = 50_000, 59_999
"""The gids of the groups that are named after Slurm accounts."""

# Accounts and groups of Debian 12 and 13, Ubuntu 22.04 and 24.04, the cloud images and the packages that nodes install.
_SYSTEM = frozenset(
    (
        *("adm", "admin", "audio", "azureuser", "backup", "bin", "cdrom", "crontab", "daemon", "debian", "dialout"),
        *("dip", "disk", "dnsmasq", "docker", "fax", "floppy", "games", "gnats", "google-sudoers", "input", "irc"),
        *("kmem", "kvm", "landscape", "list", "lp", "lxd", "mail", "man", "messagebus", "munge", "mysql", "netdev"),
        *("news", "nobody", "nogroup", "nvidia-persistenced", "omi", "ops", "operator", "people", "plugdev"),
        *("polkitd", "pollinate", "proxy", "rdma", "render", "root", "rtkit", "sasl", "sgx", "shadow", "slurm"),
        *("src", "sshd", "ssl-cert", "staff", "statd", "sudo", "sync", "sys", "syslog", "tape", "trainer", "tss"),
        *("tty", "ubuntu", "users", "utmp", "uucp", "uuidd", "video", "voice", "waagent", "wheel", "www-data"),
    )
)
_KEY = re.compile(r"(?P<type>[a-z0-9@.-]+) (?P<body>[A-Za-z0-9+/]{16,4096}={0,2})(?: [ -~]*)?")
_KEY_TYPES = (
    *("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    *("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"),
)
_NAME = r"^[a-z][a-z0-9_-]{0,30}$"
_LETTERS = "must be 1 to 31 lowercase letters, digits, '-' and '_', beginning with a letter"


def _not_reserved(name: str) -> str:
    if name in _SYSTEM or name.startswith("systemd-"):
        raise RuleError(f"'{name}' is reserved for an account or a group of the nodes", "choose another name")
    return name


def _check_key(key: str) -> str:
    if "PRIVATE KEY" in key:
        raise RuleError(
            "is a private key, and everyone who can read this file can now use it",
            "create a new key pair, and write the text of its .pub file here",
        )
    found = _KEY.fullmatch(key)
    if found is None or found["type"] not in _KEY_TYPES or not _is_wire_format(found["type"], found["body"]):
        types = ", ".join(_KEY_TYPES)
        raise RuleError(
            f"must be a line with an OpenSSH public key of one of these types, without options: {types}",
            "write the text of a .pub file, which `ssh-keygen -t ed25519` creates",
        )
    return key


def _is_wire_format(kind: str, body: str) -> bool:
    """Return whether the base64 text begins with the key's type (RFC 4253, section 6.6; read 2026-11-25)."""
    try:
        content = base64.b64decode(body, validate=True)
    except binascii.Error:
        return False
    return content.startswith(len(kind).to_bytes(4, "big") + kind.encode())


UserName = Annotated[str, Field(pattern=_NAME, description=_LETTERS, examples=["ann"]), AfterValidator(_not_reserved)]
AccountName = Annotated[
    str, Field(pattern=_NAME, description=_LETTERS, examples=["vision"]), AfterValidator(_not_reserved)
]
PublicKey = Annotated[
    str, Field(max_length=8192, examples=["ssh-ed25519 AAAA... ann@laptop"]), AfterValidator(_check_key)
]


class UserSpec(Model):
    """A person with an account on every node."""

    name: UserName
    """Name of the account."""
    ssh_keys: Annotated[tuple[PublicKey, ...], Field(examples=[["ssh-ed25519 AAAA... ann@laptop"]])] = ()
    """OpenSSH public keys. Required without `ssh.ca`."""
    admin: bool = False
    """Whether the person can use sudo as `ops`, and cancel and read all jobs."""
    uid: Annotated[
        int | None,
        Field(ge=FIRST_UID, le=LAST_UID, strict=True, description="must be a whole number", examples=[12345]),
    ] = None
    """Default: computed from the name."""
    accounts: Annotated[tuple[AccountName, ...], Field(examples=[["vision"]])] = ()
    """Slurm accounts, which are also groups. The first is used without `--account`. Default: `people`."""

    @property
    def number(self) -> int:
        """The person's uid."""
        return derived_id(self.name, FIRST_UID, LAST_UID) if self.uid is None else self.uid


PlainName = Annotated[str, Field(pattern=_NAME, description=_LETTERS, examples=["ann"])]
"""The name of a user or an account in `limits:`, where a check finds names that do not exist."""
_MINUTES = {"m": 1, "h": 60, "d": 24 * 60}
Amount = Annotated[int | None, Field(ge=0, le=10_000_000, strict=True, description="must be a whole number")]


class FairUseSpec(Model):
    """The limits of a person, or of a Slurm account, which all jobs in the account share."""

    gpus: Annotated[Amount, Field(examples=[8])] = None
    """The most GPUs that running jobs use at once."""
    gpu_hours_per_month: Annotated[Amount, Field(examples=[1000])] = None
    """The most GPU hours in a calendar month. A job starts only if they last until its time limit."""
    time: Annotated[
        str | None,
        Field(
            pattern=r"^[1-9][0-9]{0,4}[mhd]$",
            description="must be a number of minutes, hours or days, such as 30m, 12h or 2d",
            examples=["2d"],
        ),
    ] = None
    """The longest time limit of a job, and the default."""
    priority: Annotated[int, Field(ge=1, le=10_000, strict=True, description="must be a whole number")] = 1
    """The share of the cluster, in relation to other accounts or people of the same account."""

    @property
    def minutes(self) -> int | None:
        """The longest time limit of a job, in minutes."""
        return None if self.time is None else int(self.time[:-1]) * _MINUTES[self.time[-1]]


def derived_id(name: str, first: int, last: int) -> int:
    """Return a number from `first` to `last` that depends only on the name.

    The ids of other people and accounts therefore do not change when a person is added or removed, and the id of a
    removed person is used again only for the same name.
    """
    return first + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % (last - first + 1)


def gid_of(account: str) -> int:
    """Return the gid of a Slurm account's group."""
    return derived_id(account, FIRST_GID, LAST_GID)


def accounts_of(users: Sequence[UserSpec]) -> list[str]:
    """Return the Slurm accounts that the users list, sorted by name."""
    return sorted({account for user in users for account in user.accounts})


def conflicts(users: Sequence[UserSpec], authority: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield the key, rule and fix of each user who cannot log in, and of each conflict between users or accounts.

    `authority` is the key that signs the users' certificates, if there is one.
    """
    names: dict[str, int] = {}
    keys: dict[str, str] = {}
    uids: dict[int, str] = {}
    for index, user in enumerate(users):
        if user.name in names:
            yield f"{index}.name", f"users.{names[user.name]} has the same name", "remove or rename one of them"
            continue
        names[user.name] = index
        if other := uids.get(user.number):
            fix = f"write a different `uid:` from {FIRST_UID} to {LAST_UID} for the newer of the two"
            yield f"{index}.uid", f"{user.name} and {other} have the same uid, {user.number}", fix
        uids.setdefault(user.number, user.name)
        if not user.ssh_keys and authority is None:
            fix = "add one, name a certificate authority with `ssh.ca`, or remove the user to lock the account"
            yield f"{index}.ssh_keys", "needs at least one public key", fix
        for at, key in enumerate(user.ssh_keys):
            body = key.split()[1]
            if body in keys:
                yield f"{index}.ssh_keys.{at}", f"{keys[body]} has the same key", "use a separate key for each person"
            keys.setdefault(body, user.name)
    gids: dict[int, str] = {}
    for index, user in enumerate(users):
        for at, account in enumerate(user.accounts):
            if gids.setdefault(gid_of(account), account) != account:
                rule = f"the groups of {account} and {gids[gid_of(account)]} have the same gid"
                yield f"{index}.accounts.{at}", rule, "rename one of the accounts"
