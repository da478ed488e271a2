"""The stage 66-people: accounts, keys, folders, and the end of removed people's processes and jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.node import people
from tests.cloud_init.stage_sandbox import Ran, Sandbox
from tests.components.stackfile.test_people import plan_of
from tests.people import person, public_key

ENV = {"CLUSTER": "yard", "HEAD_NAME": "yard-head", "HEAD_IP": "10.77.0.4"}
ACCOUNTS = "root:x:0:0::/root:/bin/bash\ntrainer:x:2000:2000::/home/trainer:/bin/bash\n"
GROUP = "root:x:0:\ntrainer:x:2000:\n"
ANN = person("ann", accounts=["vision"])
BOB = person("bob", admin=True)
OF_ANN = "ann:x:23870:2001::/shared/people/ann/home:/bin/bash\n"
PEOPLE = "people:x:2001:\n"
FOLDER = "23870 /shared/people/ann\n"
PROGRAMS = (
    "install",
    "useradd",
    "usermod",
    "groupadd",
    "gpasswd",
    "pkill",
    "scancel",
    "sacctmgr",
    "systemctl",
    "chown",
    "stat",
)
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
        (root / "shared").mkdir(exist_ok=True)

    def run(
        self, *users: dict[str, object], role: str = "head", job_user_key: str = "ssh-ed25519 AAAA user@yard"
    ) -> Ran:
        plan = plan_of(*users)
        files = {"people": people.render_people(plan), **people.render_keys(plan, job_user_key)}
        files |= people.render_accounts(plan)
        folder = self.root / "handover"
        self.sandbox.write({f"handover/{path}": text for path, text in files.items()})
        for old in (folder / "keys").iterdir():
            if f"keys/{old.name}" not in files:
                old.unlink()
        return self.sandbox.run("66-people", **ENV, ROLE=role, TEST_HANDOVER=str(folder))

    def read(self, path: str) -> str | None:
        return self.sandbox.read(path)


def test_stack_without_people_only_installs_the_job_users_key(tmp_path: Path) -> None:
    node = Node(tmp_path)
    ran = node.run().passed()
    assert ran.commands == ["sshd -T -C user=trainer,host=yard-head,addr=10.77.0.4"]
    assert [path.name for path in (tmp_path / "etc/trainyard/authorized_keys").iterdir()] == ["trainer"]
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


@pytest.mark.parametrize("role", ["head", "worker"])
def test_people_get_accounts_groups_and_keys(tmp_path: Path, role: str) -> None:
    node = Node(tmp_path, ANN, BOB, owners="0 /shared/people/ann\n0 /shared/people/bob\n")
    ran = node.run(ANN, BOB, role=role).passed()
    assert ran.calls("groupadd") == ["groupadd --gid 2001 people", "groupadd --gid 53852 vision"]
    assert sorted(ran.calls("useradd")) == [
        f"useradd --uid {uid} --gid people --home-dir /shared/people/{name}/home --no-create-home --shell /bin/bash "
        f"{name}"
        for uid, name in ((23870, "ann"), (28650, "bob"))
    ]
    assert node.read("etc/trainyard/authorized_keys/ann") == f"{public_key('a')}\n"
    assert node.read("etc/sudoers.d/trainyard") == "bob ALL=(ALL) NOPASSWD:ALL\n"
    assert "Match Group people\n" in str(node.read("etc/ssh/sshd_config.d/91-trainyard-people.conf"))
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
    assert ran.calls("usermod", "scancel", "pkill") == [
        "usermod --expiredate 1 ann",
        *(["scancel --user=ann"] if role == "head" else []),
        "pkill -KILL -u 23870",
        "usermod --shell /usr/sbin/nologin ann",
    ]
    assert node.read("etc/trainyard/authorized_keys/ann") is None
    assert node.read("etc/sudoers.d/trainyard") == "\n"
    assert not {"userdel", "rm"} & {command.split()[0] for command in ran.commands}


def test_removed_person_stays_removed_or_returns(tmp_path: Path) -> None:
    removed = OF_ANN.replace("/bin/bash", f"{tmp_path}/usr/sbin/nologin")
    node = Node(tmp_path, passwd=removed, group=PEOPLE)
    assert node.run(role="worker").passed().calls("usermod", "pkill") == []
    assert node.run(ANN, role="worker").passed().calls("usermod") == ["usermod --expiredate  --shell /bin/bash ann"]


def test_other_users_leave_the_accounting(tmp_path: Path) -> None:
    node = Node(tmp_path, ANN, passwd=OF_ANN, group=PEOPLE, owners=FOLDER)
    rows = "people|trainer\nroot|root\nvision|ann"
    node.sandbox.answers["sacctmgr -nP"] = f"0 nlp|ann\nnlp|old\nvision|old\n{rows}\n"
    ran = node.run(ANN)
    assert ran.calls("sacctmgr -i delete") == [
        "sacctmgr -i delete user where name=ann account=nlp",
        "sacctmgr -i delete user where name=old",
    ]
    # The fake accounting has not changed.
    assert "the accounts in Slurm differ from the stack file" in ran.failure()


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
