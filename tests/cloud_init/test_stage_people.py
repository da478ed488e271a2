"""The stage 66-people: accounts, keys, folders, and the end of removed people's processes and jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from components.node import people
from tests.cloud_init.stage_sandbox import Ran, Sandbox
from tests.components.stackfile.test_people import plan_of
from tests.people import person, public_key

needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")

ENV = {"NODE": "yard-gpu-0", "CLUSTER": "yard", "HEAD_NAME": "yard-head", "HEAD_IP": "10.77.0.4"}
ACCOUNTS = "root:x:0:0::/root:/bin/bash\ntrainer:x:2000:2000::/home/trainer:/bin/bash\n"
GROUP = "root:x:0:\ntrainer:x:2000:\n"
ANN = person("ann", accounts=["vision"])
BOB = person("bob", admin=True)
OF_ANN = "ann:x:23870:2001::/shared/people/ann/home:/bin/bash\n"
PEOPLE = "people:x:2001:\n"
FOLDER = "23870 /shared/people/ann\n"
PAM = """\
account    required     pam_nologin.so
@include common-account
session    required     pam_loginuid.so
@include common-session
session    required     pam_limits.so
"""
"""The lines in question of Debian 13's /etc/pam.d/sshd (openssh-server 1:10.0p1-7+deb13u4, read 2026-11-26)."""
PROGRAMS = (
    "install",
    "useradd",
    "usermod",
    "groupadd",
    "gpasswd",
    "pkill",
    "setpriv",
    "scancel",
    "sacctmgr",
    "systemctl",
    "chown",
    "stat",
)
SHOW = "sacctmgr -nP show assoc format=account,user"
READ = "0 authorizedkeysfile {root}/etc/trainyard/authorized_keys/%u .ssh/authorized_keys"


class Node:
    """A node with these accounts and groups, and with `users` in Slurm's accounting. Its programs change nothing."""

    def __init__(
        self, root: Path, *users: dict[str, object], passwd: str = "", group: str = "", owners: str = ""
    ) -> None:
        self.root = root
        answers = {
            "sshd -T": READ.format(root=root),
            "stat -c %F %U %A /shared/people": "0 directory root drwxr-xr-x",
            "stat -c %F %U %A /shared/envs": "0 directory trainer drwxr-xr-x",
            "stat -c %u %n": f"0 {owners}",
            "getent": "0 ",
            "pkill": "1 ",
            "sacctmgr -nP": "0 " + people.render_accounts(plan_of(*users))["accounts/rows"],
        }
        self.sandbox = Sandbox(root, (*PROGRAMS, "sshd", "getent"), answers)
        self.sandbox.write({"etc/passwd": ACCOUNTS + passwd, "etc/group": GROUP + group, "etc/skel/.bashrc": "x=1\n"})
        self.sandbox.write({"etc/pam.d/sshd": PAM})
        (root / "shared").mkdir(exist_ok=True)

    def run(
        self,
        *users: dict[str, object],
        role: str = "head",
        job_user_key: str = "ssh-ed25519 AAAA user@yard",
        os: str = "debian-13",
        **env: str,
    ) -> Ran:
        plan = plan_of(*users)
        accounts = {"trainer": [job_user_key], "ops": ["restrict ssh-ed25519 AAAA authority@yard"]}
        files = {"people": people.render_people(plan), **people.render_keys(plan, accounts)}
        files |= people.render_accounts(plan)
        folder = self.root / "handover"
        self.sandbox.write({f"handover/{path}": text for path, text in files.items()})
        for old in (folder / "keys").iterdir():
            if f"keys/{old.name}" not in files:
                old.unlink()
        return self.sandbox.run("66-people", **ENV, **env, ROLE=role, OS=os, TEST_HANDOVER=str(folder))

    def read(self, path: str) -> str | None:
        return self.sandbox.read(path)


def test_stack_without_people_only_installs_the_job_users_key(tmp_path: Path) -> None:
    node = Node(tmp_path)
    ran = node.run().passed()
    assert [line for line in ran.commands if not line.startswith("install ")] == [
        "sshd -T -C user=trainer,host=yard-head,addr=10.77.0.4",
        "systemctl try-reload-or-restart ssh.service",
        "sshd -T -C user=ops,host=yard-head,addr=10.77.0.4",
    ]
    assert {path.name for path in (tmp_path / "etc/trainyard/authorized_keys").iterdir()} == {"trainer", "ops"}
    # Until the settings change, sshd is neither restarted nor checked again.
    assert node.run().passed().commands == ["sshd -T -C user=trainer,host=yard-head,addr=10.77.0.4"]
    assert not (tmp_path / "shared/people").exists()


def test_rotated_key_replaces_the_previous_key(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for key in ("ssh-ed25519 AAAA", "ssh-ed25519 BBBB"):
        node.run(job_user_key=key).passed()
        assert node.read("etc/trainyard/authorized_keys/trainer") == f"{key}\n"


def test_key_file_that_sshd_ignores_is_an_error(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.sandbox.answers["sshd -T"] = "0 authorizedkeysfile .ssh/authorized_keys"
    message = node.run().failure()
    assert message.startswith(f"fail sshd does not read {tmp_path}/etc/trainyard/authorized_keys for the user trainer")
    # The check is skipped if sshd prints no settings.
    node.sandbox.answers["sshd -T"] = "1 Missing privilege separation directory: /run/sshd"
    node.run().passed()


@pytest.mark.parametrize(("ledger", "home"), [("", ""), ("ledger", " .ssh/authorized_keys")])
def test_sshd_ignores_the_admins_keys_from_user_data(tmp_path: Path, ledger: str, home: str) -> None:
    Node(tmp_path).run(TEST_LEDGER=ledger and str(tmp_path / ledger)).passed()
    settings = (tmp_path / "etc/ssh/sshd_config.d/92-trainyard-admin.conf").read_text()
    assert settings == f"Match User ops\n  AuthorizedKeysFile {tmp_path}/etc/trainyard/authorized_keys/%u{home}\n"


@pytest.mark.parametrize("role", [pytest.param("head", marks=needs_ssh_keygen), "worker"])
def test_people_get_accounts_groups_and_keys(tmp_path: Path, role: str) -> None:
    node = Node(tmp_path, ANN, BOB, owners="0 /shared/people/ann\n0 /shared/people/bob\n")
    node.sandbox.write({"etc/sudoers.d/trainyard": "bob ALL=(ALL) NOPASSWD:ALL\n"})  # a former version's file
    ran = node.run(ANN, BOB, role=role).passed()
    assert ran.calls("groupadd") == ["groupadd --gid 2001 people", "groupadd --gid 53852 vision"]
    assert sorted(ran.calls("useradd")) == [
        f"useradd --uid {uid} --gid people --home-dir /shared/people/{name}/home --no-create-home --shell /bin/bash "
        f"{name}"
        for uid, name in ((23870, "ann"), (28650, "bob"))
    ]
    assert node.read("etc/trainyard/authorized_keys/ann") == f"{public_key('a')}\n"
    # bob is an admin. Root on a worker can write in every home, so only ops uses sudo.
    assert node.read("etc/sudoers.d/trainyard") is None
    assert "systemctl try-reload-or-restart ssh.service" in ran.commands
    homes = sorted(
        str(path.relative_to(tmp_path)) for path in (tmp_path / "shared/people").glob("*/home/.ssh/id_ed25519")
    )
    assert homes == (
        [f"shared/people/{name}/home/.ssh/id_ed25519" for name in ("ann", "bob")] if role == "head" else []
    )
    assert ("sacctmgr -i" in ran.commands) is (role == "head")


def test_home_and_its_key_are_private(tmp_path: Path) -> None:
    Node(tmp_path, BOB, owners="0 /shared/people/bob\n").run(BOB)
    home = tmp_path / "shared/people/bob/home"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (home.parent, home, home / ".bashrc", home / ".ssh")}
    assert modes == {"bob": 0o711, "home": 0o700, ".bashrc": 0o600, ".ssh": 0o700}


def test_enroot_has_folders_for_each_person(tmp_path: Path) -> None:
    node = Node(tmp_path, ANN, passwd=OF_ANN, group=PEOPLE)
    # The stage 44-containers writes such settings.
    node.sandbox.write(
        {"etc/enroot/enroot.conf.d/trainyard.conf": "ENROOT_DATA_PATH /var/lib/enroot/user-$(id -u)/data\n"}
    )
    ran = node.run(ANN, role="worker").passed()
    assert ran.calls("install") == ["install -d -m 0700 -o ann -g people /var/lib/enroot/user-23870/data"]


def test_second_pass_changes_no_account(tmp_path: Path) -> None:
    node = Node(tmp_path, ANN, passwd=OF_ANN, group=f"{PEOPLE}vision:x:53852:ann\n", owners=FOLDER)
    node.run(ANN).passed()
    ran = node.run(ANN).passed()
    assert ran.calls("useradd", "usermod", "groupadd", "gpasswd", "pkill", "scancel", "systemctl", "chown") == []


def test_members_of_groups_follow_the_stack_file(tmp_path: Path) -> None:
    group = f"{PEOPLE}vision:x:53852:bob\nold:x:50123:ann\nsudo:x:27:ann\n"
    ran = Node(tmp_path, ANN, passwd=OF_ANN, group=group).run(ANN, role="worker").passed()
    assert sorted(ran.calls("gpasswd")) == ["gpasswd --members  old", "gpasswd --members ann vision"]


@pytest.mark.parametrize("role", ["head", "worker"])
def test_removed_person_is_locked_before_the_processes_end(tmp_path: Path, role: str) -> None:
    node = Node(tmp_path, passwd=OF_ANN, group=PEOPLE)
    node.sandbox.write({"etc/trainyard/authorized_keys/ann": public_key("a"), "etc/sudoers.d/trainyard": "ann\n"})
    ran = node.run(role=role).passed()
    kill = ["setpriv --reuid=23870 --regid=2001 --clear-groups -- bash -c kill -KILL -1", "pkill -KILL -u 23870"]
    calls = ran.calls("usermod", "scancel", "pkill", "setpriv")
    strip = next(call for call in calls if " -- find " in call)
    assert strip.endswith(" -xdev -uid 23870 -type f -perm /6000 -exec chmod ug-s {} +")
    assert calls == [
        "usermod --expiredate 1 ann",
        *(["scancel --user=ann"] if role == "head" else []),
        *kill,
        strip,
        *kill,
        "usermod --shell /usr/sbin/nologin ann",
    ]
    assert node.read("etc/trainyard/authorized_keys/ann") is None
    assert node.read("etc/sudoers.d/trainyard") is None
    assert not {"userdel", "rm"} & {command.split()[0] for command in ran.commands}


def test_removed_person_stays_removed_or_returns(tmp_path: Path) -> None:
    removed = OF_ANN.replace("/bin/bash", f"{tmp_path}/usr/sbin/nologin")
    node = Node(tmp_path, passwd=removed, group=PEOPLE)
    assert node.run(role="worker").passed().calls("usermod", "pkill", "setpriv") == []
    assert node.run(ANN, role="worker").passed().calls("usermod") == ["usermod --expiredate  --shell /bin/bash ann"]


def test_other_users_leave_the_accounting(tmp_path: Path) -> None:
    node = Node(tmp_path, ANN, passwd=OF_ANN, group=PEOPLE, owners=FOLDER)
    rows = "root|root\ntrainer|trainer\nvision|ann"
    node.sandbox.answers["sacctmgr -nP"] = f"0 nlp|ann\nnlp|old\nvision|old\n{rows}\n"
    ran = node.run(ANN)
    assert ran.calls("scancel", "sacctmgr -i delete") == [
        "sacctmgr -i delete user where name=ann account=nlp",
        "scancel --user=old",
        "sacctmgr -i delete user where name=old",
    ]
    # The fake accounting has not changed.
    assert "the accounts in Slurm differ from the stack file" in ran.failure()


def test_limits_that_slurm_refuses_are_an_error(tmp_path: Path) -> None:
    node = Node(tmp_path, ANN, passwd=OF_ANN, group=PEOPLE, owners=FOLDER)
    assert node.run(ANN).passed().calls("sacctmgr") == ["sacctmgr -i", SHOW, "sacctmgr -i"]
    # For the first of these commands, an existing account is an error too.
    node.sandbox.answers["sacctmgr -i"] = "1 "
    ran = node.run(ANN)
    assert ran.failure() == "fail Slurm refused limits of the stack file; sacctmgr prints its reason above"
    assert ran.calls("sacctmgr") == ["sacctmgr -i", SHOW, "sacctmgr -i"]


@pytest.mark.parametrize(
    ("passwd", "owners", "message"),
    [
        (OF_ANN.replace("23870", "12000"), "", "an account ann with uid 12000, not 23870. Fix: rename the user"),
        (OF_ANN.replace(":2001:", ":100:"), "", "an account ann with uid 23870"),
        (
            OF_ANN,
            "12000 /shared/people/ann\n",
            "/shared/people/ann belongs to uid 12000. Fix: write `uid: 12000` for ann",
        ),
        (
            OF_ANN,
            "23870 /shared/people/ann\n23870 /shared/people/zoe\n",
            "/shared/people/zoe belongs to uid 23870, which is",
        ),
    ],
)
def test_files_and_accounts_of_others_are_not_taken_over(
    tmp_path: Path, passwd: str, owners: str, message: str
) -> None:
    ran = Node(tmp_path, ANN, passwd=passwd, group=PEOPLE, owners=owners).run(ANN)
    assert message in ran.failure().replace(str(tmp_path), "")
    assert ran.calls("useradd", "usermod", "chown", "pkill") == []


@pytest.mark.parametrize(
    "found", ["symbolic link bob lrwxrwxrwx", "directory bob drwxr-xr-x", "directory root drwxrwxr-x"]
)
def test_folder_of_people_must_belong_to_root(tmp_path: Path, found: str) -> None:
    node = Node(tmp_path, ANN, passwd=OF_ANN, group=PEOPLE, owners=FOLDER)
    node.sandbox.answers["stat -c %F %U %A /shared/people"] = f"0 {found}"
    message = node.run(ANN).failure().replace(str(tmp_path), "")
    assert message.startswith(
        f"fail /shared/people must be a folder of root in which nobody else can write, but it is: {found}"
    )


def test_only_people_need_a_job_to_log_in_to_a_worker(tmp_path: Path) -> None:
    node = Node(tmp_path, ANN, BOB)
    for _ in range(2):
        node.run(ANN, BOB, role="worker").passed()
        for phase in ("account [success=ignore default=3]", "session [success=1 default=ignore]"):
            file = f"etc/pam.d/trainyard-{phase.split()[0]}"
            assert str(node.read(file)).startswith(f"{phase} pam_succeed_if.so quiet gid eq 2001\n")
        # The module must be the last one for accounts, and common-session must not be included a second time.
        assert node.read("etc/pam.d/sshd") == (
            PAM.replace("common-session", "trainyard-session") + "@include trainyard-account\n"
        )


def test_logins_to_the_head_need_no_job(tmp_path: Path) -> None:
    node = Node(tmp_path, ANN, owners="0 /shared/people/ann\n")
    node.run(ANN, role="head").passed()
    assert node.read("etc/pam.d/sshd") == PAM
    assert node.read("etc/pam.d/trainyard-account") is None


def test_a_worker_with_other_rules_for_logins_fails(tmp_path: Path) -> None:
    node = Node(tmp_path, ANN)
    node.sandbox.write({"etc/pam.d/sshd": "session include common-session\n"})
    ran = node.run(ANN, role="worker")
    assert "must contain the line `@include common-session`" in ran.failure()
    assert ran.calls("useradd") == []


SERVE = """
set -e
cd "$0"
mount -t tmpfs -o mode=755 none /run
mkdir /run/sshd
ip link set lo up
for name in passwd group shadow; do mount --bind "etc/$name" "/etc/$name"; done
mount --bind etc/pam.d /etc/pam.d
mount --bind secrets /root
ssh-keygen -q -t ed25519 -N '' -f /root/host
ssh-keygen -q -t ed25519 -N '' -f /root/key
cp /root/key.pub /run/keys
/usr/sbin/sshd -f /dev/null -o ListenAddress=127.0.0.1 -o HostKey=/root/host -o UsePAM=yes -o PidFile=none \
  -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o AuthorizedKeysFile=/run/keys
# sshd goes to the background before it listens.
until (exec 3<>/dev/tcp/127.0.0.1/22) 2>/run/refused; do sleep 0.05; done
for user in ann bob trainer root; do
  echo "== $user"
  ssh -i /root/key -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/root/known_hosts \
    -o LogLevel=INFO "$user@127.0.0.1" 'echo "in, common-session: ${COMMON_SESSION-no}"' 2>&1 | grep -v known || true
done
"""
"""Runs a real sshd on the loopback interface of a new network namespace, and logs in as several users."""


def can_serve() -> bool:
    """Return whether this test can run sshd with its own accounts and rules."""
    programs = ("/usr/sbin/sshd", "unshare", "ssh", "ip")
    if os.geteuid() != 0 or not all(map(shutil.which, programs)):
        return False
    probed = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return probed.returncode == 0


def logins(node: Node, with_job: str) -> dict[str, str]:
    """Return what each user sees. pam_listfile replaces Slurm's module: a user has a job if the file has the name."""
    etc = node.root / "etc"
    jobs = etc / "with-job"
    jobs.write_text(f"{with_job}\n")
    account = etc / "pam.d/trainyard-account"
    text = account.read_text()
    start = text.index("pam_slurm_adopt.so")
    module = f"pam_listfile.so item=user sense=allow onerr=fail file={jobs}"
    account.write_text(text[:start] + module + text[text.index("\n", start) :])
    (etc / "session.conf").write_text("COMMON_SESSION DEFAULT=yes\n")
    rules = {
        "common-account": "account required pam_permit.so\n",
        "common-auth": "auth required pam_permit.so\n",
        "common-session": f"session required pam_env.so conffile={etc}/session.conf\n",
        "other": "",
    }
    for name, lines in rules.items():
        (etc / "pam.d" / name).write_text(lines)
    own = "ann:x:23870:2001::/tmp:/bin/bash\nbob:x:28650:2001::/tmp:/bin/bash\ntrainer:x:2000:2000::/tmp:/bin/bash\n"
    for name, lines in (("passwd", own), ("group", "people:x:2001:\n")):
        (etc / name).write_text(Path("/etc", name).read_text() + lines)
    names = [line.split(":")[0] for line in (etc / "passwd").read_text().splitlines()]
    (etc / "shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in names))
    (node.root / "secrets").mkdir(mode=0o700, exist_ok=True)
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", SERVE, str(node.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(part.split("\n", 1) for part in done.stdout.split("== ")[1:])


@pytest.mark.skipif(not can_serve(), reason="needs root and sshd")
@pytest.mark.parametrize("with_job", ["ann", ""])
def test_sshd_admits_a_person_only_with_a_job(tmp_path: Path, with_job: str) -> None:
    node = Node(tmp_path, ANN, BOB)
    node.run(ANN, BOB, role="worker").passed()
    tmp_path.chmod(0o755)
    found = logins(node, with_job)
    common = "in, common-session: yes\n"
    assert (found["trainer"], found["root"]) == (common, common)
    # bob is an admin, who logs in as ops instead.
    assert found["bob"].startswith("No job of bob is running on ")
    if with_job:
        assert found["ann"] == "in, common-session: no\n"
    else:
        assert found["ann"].startswith("No job of ann is running on ")
        assert "`yard ssh` without a node" in found["ann"]
        assert "common-session" not in found["ann"]
