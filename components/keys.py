"""A stack's certificate authority, SSH key pairs, munge key and database password.

They are created once, stored as Pulumi secrets, and rotated with `yard rotate` or `pulumi up --replace URN`. Machines
know only the authority's public key from their user-data. The authority signs the keys of the admin and of the head, so
new keys need no new machines.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from components.node.user_data import AccessKeys, Login
from trainyard.certificate import valid_before
from trainyard.errors import PlatformError

MUNGE_KEY_BYTES = 128
"""The default key size of `mungekey`. munge accepts 32 to 1024 bytes."""
_VALIDITY = "-1d:+365d"
"""The validity of a certificate, from a day ago, because a machine's clock can be wrong at its first boot. A year is
long enough for clusters that nobody changes. `yard rotate` makes a stolen key useless earlier, because nodes accept
only the certificates of the current keys."""
_RENEWAL_SECONDS = 90 * 86400
"""In this time before the end of a certificate, `pulumi up` signs the key again."""


def ssh_keypair(comment: str) -> tuple[str, str]:
    """Return a new ed25519 key pair (private, public) in OpenSSH format. Raises PlatformError without ssh-keygen."""
    with tempfile.TemporaryDirectory(prefix="trainyard-key-") as folder:
        path = Path(folder) / "key"
        _ssh_keygen("-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
        return path.read_text(), path.with_suffix(".pub").read_text().strip()


def certificate(login: Login, public: str, authority: str, address: str = "", validity: str = _VALIDITY) -> str:
    """Return an OpenSSH certificate for the key `public`, signed with the private key `authority`.

    A certificate with an `address` is valid only for connections from it, and only to run commands. `validity` is an
    interval of ssh-keygen's option -V. Raises PlatformError without ssh-keygen.
    """
    principal = login.principal(public)
    names = f"{login.value},{principal}"
    options = ("-O", "clear", "-O", f"source-address={address}/32") if address else ()
    with tempfile.TemporaryDirectory(prefix="trainyard-key-") as folder:
        signer, path = Path(folder) / "authority", Path(folder) / "key.pub"
        signer.touch(mode=0o600)
        signer.write_text(authority)
        path.write_text(public)
        _ssh_keygen("-s", str(signer), "-I", principal, "-n", names, "-V", validity, *options, str(path))
        return path.with_name("key-cert.pub").read_text().strip()


def _ssh_keygen(*arguments: str) -> None:
    try:
        subprocess.run(["ssh-keygen", "-q", *arguments], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise PlatformError("ssh-keygen is missing on this computer; install the openssh-client package") from error


class _SecretsProvider(ResourceProvider):
    """Base class for providers whose secret changes only if the resource is replaced."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        # By default, the engine compares the inputs, which include the serialized provider. A change to this code would
        # then cause an update, and the update would delete the outputs.
        return DiffResult(changes=False)


class _KeysProvider(_SecretsProvider):
    """Do not rename this class, the other providers or their outputs, because the state contains their names."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        private, public = ssh_keypair(f"authority@{props['cluster']}")
        outs = {
            "cluster": props["cluster"],
            "admin_private": private,
            "admin_public": public,
            "cluster_private": "",
            "cluster_public": "",
        }
        return CreateResult(f"{props['cluster']}-keys", outs)


class _CertifiedKeyProvider(_SecretsProvider):
    """Inputs: cluster, login, address, ca_private and ca_public. Additional outputs: private, public, certificate."""

    def create(self, props: dict[str, Any]) -> CreateResult:
        private, public = ssh_keypair(f"{props['login']}@{props['cluster']}")
        return CreateResult(
            f"{props['cluster']}-{props['login']}-key", self._signed(props, {"private": private, "public": public})
        )

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        """Return a change if the certificate ends soon, or if it has another signer or address than the inputs."""
        ends_soon = valid_before(olds["certificate"]) - time.time() < _RENEWAL_SECONDS
        return DiffResult(changes=ends_soon or any(olds[name] != news.get(name) for name in ("ca_public", "address")))

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        """Sign the same key again."""
        return UpdateResult(self._signed(news, {name: olds[name] for name in ("private", "public")}))

    def _signed(self, props: dict[str, Any], pair: dict[str, str]) -> dict[str, Any]:
        signed = certificate(Login(props["login"]), pair["public"], props["ca_private"], props["address"])
        kept = {name: props[name] for name in ("cluster", "login", "address", "ca_public")}
        return {**kept, **pair, "certificate": signed}


class _UserKeyProvider(_SecretsProvider):
    def create(self, props: dict[str, Any]) -> CreateResult:
        private, public = ssh_keypair(f"user@{props['cluster']}")
        return CreateResult(id_=f"{props['cluster']}-user-key", outs={**props, "private": private, "public": public})


class _MungeKeyProvider(_SecretsProvider):
    def create(self, props: dict[str, Any]) -> CreateResult:
        key = base64.b64encode(secrets.token_bytes(MUNGE_KEY_BYTES)).decode()
        return CreateResult(id_=f"{props['cluster']}-munge-key", outs={**props, "key": key})


class _DatabasePasswordProvider(_SecretsProvider):
    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(f"{props['cluster']}-database-password", {**props, "password": secrets.token_hex(32)})


class ClusterKeys(Resource):
    """The cluster's certificate authority. Rotating it replaces machines, as its public key is in user-data. Existing
    hosts are updated in place.

    In the state of an older version, this resource contains the key pairs of the admin and of the head, whose public
    keys are in the machines' user-data. The former admin key is then the authority, so that no machine is replaced. The
    head still has its former key, with which it sends the new keys to workers (trainyard-receive).
    """

    admin_private: pulumi.Output[str]
    """The authority's private key. The provisioner also uses it to log in to the head, because pulumi-command cannot
    use certificates (pulumi/pulumi-command@03b207d:provider/pkg/provider/remote/connection.go, SShConfig; read
    2026-11-26)."""
    admin_public: pulumi.Output[str]
    cluster_private: pulumi.Output[str]
    cluster_public: pulumi.Output[str]
    """The head's public key in user-data from an older version, or ""."""

    def __init__(self, name: str, cluster: str, opts: pulumi.ResourceOptions | None = None) -> None:
        unknown = dict.fromkeys(("admin_private", "admin_public", "cluster_private", "cluster_public"))
        super().__init__(
            _KeysProvider(), name, {"cluster": cluster, **unknown}, _secret(opts, "admin_private", "cluster_private")
        )


class CertifiedKey(Resource):
    """A key pair with a certificate. Rotating it sends a new hand-over (components/node), after which nodes refuse the
    former certificate.
    """

    private: pulumi.Output[str]
    public: pulumi.Output[str]
    certificate: pulumi.Output[str]

    def __init__(  # noqa: PLR0913  (the inputs are independent)
        self,
        name: str,
        cluster: str,
        login: Login,
        authority: ClusterKeys,
        opts: pulumi.ResourceOptions | None = None,
        *,
        address: str = "",
    ) -> None:
        signer: pulumi.Output[str] = pulumi.Output.secret(authority.admin_private)
        props = {
            "cluster": cluster,
            "login": login.value,
            "address": address,
            "ca_private": signer,
            "ca_public": authority.admin_public,
            **dict.fromkeys(("private", "public", "certificate")),
        }
        super().__init__(_CertifiedKeyProvider(), name, props, _secret(opts, "private", "ca_private"))


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


class DatabasePassword(Resource):
    """The password of slurmdbd's user in MariaDB. Rotating it sends a new hand-over, which restarts slurmdbd."""

    password: pulumi.Output[str]

    def __init__(self, name: str, cluster: str, opts: pulumi.ResourceOptions | None = None) -> None:
        props = {"cluster": cluster, "password": None}
        super().__init__(_DatabasePasswordProvider(), name, props, _secret(opts, "password"))


class StackKeys:
    """All secrets of a stack. yard/stack/rotate.py contains the ends of the resources' names."""

    def __init__(self, name: str, cluster: str, head: str, opts: pulumi.ResourceOptions) -> None:
        """`head` is the head's private address."""
        self.authority = ClusterKeys(f"{name}-keys", cluster, opts)
        self.admin = CertifiedKey(f"{name}-admin-key", cluster, Login.ADMIN, self.authority, opts)
        self.cluster = CertifiedKey(f"{name}-cluster-key", cluster, Login.HEAD, self.authority, opts, address=head)
        self.user = UserKey(f"{name}-user-key", cluster, opts)
        self.munge = MungeKey(f"{name}-munge-key", cluster, opts)
        self.database = DatabasePassword(f"{name}-database-password", cluster, opts)

    @property
    def access(self) -> pulumi.Output[AccessKeys]:
        """The public keys in user-data."""
        keys = self.authority
        return pulumi.Output.all(keys.admin_public, keys.cluster_public).apply(lambda known: AccessKeys(*known))


def _secret(opts: pulumi.ResourceOptions | None, *outputs: str) -> pulumi.ResourceOptions:
    secret = pulumi.ResourceOptions(additional_secret_outputs=list(outputs))
    merged: pulumi.ResourceOptions = pulumi.ResourceOptions.merge(opts, secret)
    return merged
