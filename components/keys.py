"""A stack's SSH key pairs and munge key, which are created once, stored as Pulumi secrets, and rotated with
`pulumi up --replace URN`.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider

from trainyard.errors import PlatformError

MUNGE_KEY_BYTES = 128
"""The default key size of `mungekey`. munge accepts 32 to 1024 bytes."""


def ssh_keypair(comment: str) -> tuple[str, str]:
    """Return a new ed25519 key pair (private, public) in OpenSSH format. Raises PlatformError without ssh-keygen."""
    with tempfile.TemporaryDirectory(prefix="trainyard-key-") as folder:
        path = Path(folder) / "key"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise PlatformError("ssh-keygen is missing on this computer; install the openssh-client package") from error
        return path.read_text(), path.with_suffix(".pub").read_text().strip()


class _SecretsProvider(ResourceProvider):
    """Base class for providers whose secret changes only if the resource is replaced."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        # By default, the engine compares the inputs, which include the serialized provider. A change to this code would
        # then cause an update, and the update would delete the outputs.
        return DiffResult(changes=False)


class _KeysProvider(_SecretsProvider):
    """Do not rename this class or the other providers, because the state contains their names."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        cluster = props["cluster"]
        admin_private, admin_public = ssh_keypair(f"admin@{cluster}")
        cluster_private, cluster_public = ssh_keypair(f"cluster@{cluster}")
        outs = {
            "cluster": cluster,
            "admin_private": admin_private,
            "admin_public": admin_public,
            "cluster_private": cluster_private,
            "cluster_public": cluster_public,
        }
        return CreateResult(id_=f"{cluster}-keys", outs=outs)


class _UserKeyProvider(_SecretsProvider):
    def create(self, props: dict[str, Any]) -> CreateResult:
        private, public = ssh_keypair(f"user@{props['cluster']}")
        return CreateResult(id_=f"{props['cluster']}-user-key", outs={**props, "private": private, "public": public})


class _MungeKeyProvider(_SecretsProvider):
    def create(self, props: dict[str, Any]) -> CreateResult:
        key = base64.b64encode(secrets.token_bytes(MUNGE_KEY_BYTES)).decode()
        return CreateResult(id_=f"{props['cluster']}-munge-key", outs={**props, "key": key})


class ClusterKeys(Resource):
    """The admin's key pair, and the key pair that the head uses to send the hand-over to workers.

    Rotating these keys replaces machines, as the public keys are in user-data. Existing hosts are updated in place.
    """

    admin_private: pulumi.Output[str]
    admin_public: pulumi.Output[str]
    cluster_private: pulumi.Output[str]
    cluster_public: pulumi.Output[str]

    def __init__(self, name: str, cluster: str, opts: pulumi.ResourceOptions | None = None) -> None:
        unknown = dict.fromkeys(("admin_private", "admin_public", "cluster_private", "cluster_public"))
        super().__init__(
            _KeysProvider(), name, {"cluster": cluster, **unknown}, _secret(opts, "admin_private", "cluster_private")
        )


class UserKey(Resource):
    """The job user's key pair. Rotating it sends a new hand-over (components/node) without replacing machines."""

    private: pulumi.Output[str]
    public: pulumi.Output[str]

    def __init__(self, name: str, cluster: str, opts: pulumi.ResourceOptions | None = None) -> None:
        props = {"cluster": cluster, "private": None, "public": None}
        super().__init__(_UserKeyProvider(), name, props, _secret(opts, "private"))


class MungeKey(Resource):
    """The cluster's munge key. Rotating it sends a new hand-over, which restarts munge on every node."""

    key: pulumi.Output[str]
    """Base64 of MUNGE_KEY_BYTES random bytes."""

    def __init__(self, name: str, cluster: str, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(_MungeKeyProvider(), name, {"cluster": cluster, "key": None}, _secret(opts, "key"))


class StackKeys:
    """All secrets of a stack."""

    def __init__(self, name: str, cluster: str, opts: pulumi.ResourceOptions) -> None:
        self.cluster = ClusterKeys(f"{name}-keys", cluster, opts)
        self.user = UserKey(f"{name}-user-key", cluster, opts)
        self.munge = MungeKey(f"{name}-munge-key", cluster, opts)


def _secret(opts: pulumi.ResourceOptions | None, *outputs: str) -> pulumi.ResourceOptions:
    secret = pulumi.ResourceOptions(additional_secret_outputs=list(outputs))
    merged: pulumi.ResourceOptions = pulumi.ResourceOptions.merge(opts, secret)
    return merged
