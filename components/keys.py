"""The cluster's secrets, made once per stack and kept as Pulumi secrets: ssh keys and the munge key."""

from __future__ import annotations

import base64
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, Resource, ResourceProvider

from components.errors import PlatformError

MUNGE_KEY_BYTES = 128
"""munge accepts 32 to 1024 bytes; 128 is what its own `mungekey` makes."""


def ssh_keypair(comment: str) -> tuple[str, str]:
    """Return a new ed25519 key pair, (private, public), as OpenSSH writes it. Raises PlatformError without it."""
    with tempfile.TemporaryDirectory(prefix="trainyard-key-") as folder:
        path = Path(folder) / "key"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise PlatformError("ssh-keygen is missing on this machine; install the openssh-client package") from error
        return path.read_text(), path.with_suffix(".pub").read_text().strip()


class _KeysProvider(ResourceProvider):
    def create(self, props: dict[str, Any]) -> CreateResult:
        cluster = props["cluster"]
        admin_private, admin_public = ssh_keypair(f"admin@{cluster}")
        cluster_private, cluster_public = ssh_keypair(f"cluster@{cluster}")
        return CreateResult(
            id_=f"{cluster}-keys",
            outs={
                "cluster": cluster,
                "admin_private": admin_private,
                "admin_public": admin_public,
                "cluster_private": cluster_private,
                "cluster_public": cluster_public,
                "munge_key": base64.b64encode(secrets.token_bytes(MUNGE_KEY_BYTES)).decode(),
            },
        )


class ClusterKeys(Resource):
    """Key pairs of the admin (who provisions and logs in) and of the head (which hands keys to workers).

    The private halves and the munge key are secrets of the stack. New keys for all: `pulumi up --replace` of this
    resource's URN; that changes user-data, so the machines are made anew with them.
    """

    admin_private: pulumi.Output[str]
    admin_public: pulumi.Output[str]
    cluster_private: pulumi.Output[str]
    cluster_public: pulumi.Output[str]
    munge_key: pulumi.Output[str]
    """Base64 of MUNGE_KEY_BYTES random bytes."""

    def __init__(self, name: str, cluster: str, opts: pulumi.ResourceOptions | None = None) -> None:
        unknown = dict.fromkeys(("admin_private", "admin_public", "cluster_private", "cluster_public", "munge_key"))
        secret = pulumi.ResourceOptions(additional_secret_outputs=["admin_private", "cluster_private", "munge_key"])
        super().__init__(
            _KeysProvider(), name, {"cluster": cluster, **unknown}, pulumi.ResourceOptions.merge(opts, secret)
        )
