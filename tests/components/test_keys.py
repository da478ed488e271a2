"""Certificates and the lines that permit them, with a real sshd on the loopback interface."""

from __future__ import annotations

import getpass
import subprocess
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from components.keys import certificate, ssh_keypair
from components.node.people import render_keys
from components.node.user_data import Login, admin_keys
from tests.components.stackfile.test_people import plan_of
from tests.offline.loopback_sshd import Sshd

HEAD = IPv4Address("127.0.0.2")
EXPIRED = "-2d:-1d"


class Client:
    """Logs in to `server` with new keys whose certificates have the signature of `authority`."""

    def __init__(self, server: Sshd) -> None:
        self.server = server
        self.private, self.authority = ssh_keypair("authority")
        self.folder = server.folder / "client"
        self.folder.mkdir()
        (self.folder / "known_hosts").write_text(f"node {server.host_key}\n")
        self.permit(*admin_keys(HEAD, self.authority))

    def permit(self, *lines: str) -> None:
        (self.server.folder / "authorized").write_text("".join(f"{line}\n" for line in lines))

    def key(self, login: Login, address: str = "", validity: str = "-1d:+1d", signer: str | None = None) -> str:
        """Write a new key and its certificate, and return the public key."""
        private, public = ssh_keypair("key")
        self.store(private)
        signed = certificate(login, public, signer or self.private, address, validity)
        (self.folder / "key-cert.pub").write_text(f"{signed}\n")
        return public

    def store(self, private: str) -> None:
        (self.folder / "key").touch(mode=0o600)
        (self.folder / "key").write_text(private)
        (self.folder / "key-cert.pub").unlink(missing_ok=True)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [
            *("ssh", "-F", "none", "-i", str(self.folder / "key"), "-p", str(self.server.port), *options),
            *("-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "HostKeyAlias=node"),
            *("-o", f"UserKnownHostsFile={self.folder}/known_hosts", f"{getpass.getuser()}@127.0.0.1", "echo in"),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    def is_admitted(self, *options: str) -> bool:
        done = self.run(*options)
        assert done.returncode == 0 or "Permission denied" in done.stderr, done.stderr
        return done.stdout == "in\n"

    @property
    def log(self) -> str:
        return self.server.log.read_text()


@pytest.fixture
def client(sshd: Sshd) -> Client:
    return Client(sshd)


def test_certificates_of_the_admin_and_the_head_are_accepted(client: Client) -> None:
    client.key(Login.ADMIN)
    assert client.is_admitted()
    client.key(Login.HEAD, str(HEAD))
    assert client.is_admitted("-b", str(HEAD))


def test_the_provisioner_runs_commands_with_the_authoritys_key(client: Client) -> None:
    client.store(client.private)
    assert client.is_admitted()


def test_another_authority_and_an_unsigned_key_are_refused(client: Client) -> None:
    client.key(Login.ADMIN, signer=ssh_keypair("other")[0])
    assert not client.is_admitted()
    client.store(ssh_keypair("unsigned")[0])
    assert not client.is_admitted()


def test_a_wrong_principal_is_refused(client: Client) -> None:
    client.permit(admin_keys(HEAD, client.authority)[1])
    client.key(Login.HEAD, "127.0.0.1")
    assert not client.is_admitted()
    assert "Certificate does not contain an authorized principal" in client.log


@pytest.mark.parametrize(("principal", "admitted"), [("ann", True), ("bob", False), ("admin", False)])
def test_a_persons_certificate_permits_one_account(client: Client, principal: str, admitted: bool) -> None:
    plan = plan_of({"name": "ann"}, {"name": "bob"}, ssh={"ca": client.authority})
    client.permit(render_keys(plan, {"ops": []})["keys/ann"])
    client.store(ssh_keypair("of a person")[0])
    ca = client.folder / "ca"
    ca.touch(mode=0o600)
    ca.write_text(client.private)
    public = subprocess.check_output(["ssh-keygen", "-y", "-f", client.folder / "key"])
    (client.folder / "key.pub").write_bytes(public)
    command: list[str | Path] = ["ssh-keygen", "-q", "-s", ca, "-I", "x", "-n", principal, client.folder / "key.pub"]
    subprocess.run(command, check=True)
    assert client.is_admitted() is admitted


def test_an_expired_certificate_is_refused(client: Client) -> None:
    client.key(Login.ADMIN, validity=EXPIRED)
    assert not client.is_admitted()
    assert "Certificate invalid: expired" in client.log


@pytest.mark.parametrize("alone", [False, True])
def test_the_heads_certificate_works_only_from_the_head(client: Client, alone: bool) -> None:
    client.key(Login.HEAD, str(HEAD))
    if alone:  # without the restrictions of the line, those of the certificate remain
        client.permit(f'cert-authority,principals="head" {client.authority}')
    assert not client.is_admitted("-b", "127.0.0.3")
    assert client.is_admitted("-b", str(HEAD))


def test_a_stolen_head_key_is_useless_from_another_address(client: Client) -> None:
    # Without the restrictions of the certificate, those of the line remain.
    client.key(Login.HEAD)
    assert not client.is_admitted()


@pytest.mark.parametrize("login", Login)
def test_the_former_certificate_is_refused_after_a_rotation(client: Client, login: Login) -> None:
    address = str(HEAD) if login is Login.HEAD else ""
    bind = ("-b", str(HEAD))

    def rotate() -> str:
        public = client.key(login, address)
        client.permit(*admin_keys(HEAD, client.authority, *([login.principal(public)] * 2)))
        return public

    rotate()
    assert client.is_admitted(*bind)
    former = {name: (client.folder / name).read_text() for name in ("key", "key-cert.pub")}
    rotate()
    assert client.is_admitted(*bind)
    for name, text in former.items():
        (client.folder / name).write_text(text)
    assert not client.is_admitted(*bind)


def test_only_the_admins_certificate_permits_a_terminal_and_forwarding(client: Client) -> None:
    def terminal(*options: str) -> bool:
        return "PTY allocation request failed" not in client.run("-tt", *options).stderr

    client.key(Login.ADMIN)
    assert terminal()
    client.key(Login.HEAD, str(HEAD))
    assert not terminal("-b", str(HEAD))
    client.store(client.private)
    assert not terminal()


def test_private_keys_are_never_in_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, real = tmp_path / "log", subprocess.check_output(["sh", "-c", "command -v ssh-keygen"], text=True).strip()
    (tmp_path / "ssh-keygen").write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{log}\nexec {real} "$@"\n')
    (tmp_path / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    private, public = ssh_keypair("a")
    certificate(Login.ADMIN, public, private)
    assert private.splitlines()[1] not in log.read_text()
    assert log.read_text().count("\n") == 2
