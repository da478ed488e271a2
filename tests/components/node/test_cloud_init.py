"""Content of user-data, and validation with cloud-init."""

from __future__ import annotations

import configparser
import email
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.catalog import images
from components.node import user_data as cloud_init
from components.node.parameters import birth_env, node_env
from components.node.user_data import AccessKeys, birth_of, merge, render_user_data
from components.plan.plan import ClusterPlan
from components.spec.model import PlatformSpec
from trainyard.errors import CatalogError

ROOT = Path(__file__).parents[3]
KEYS = AccessKeys("ssh-ed25519 AAAAadmin admin@yard", "ssh-ed25519 AAAAcluster cluster@yard")


def parts(plan: ClusterPlan, index: int = 0) -> list[tuple[str, str]]:
    """Return the type and the content of each part of the message."""
    message = email.message_from_string(render_user_data(plan, plan.hosts[index], KEYS))
    return [(part.get_content_type(), str(part.get_payload())) for part in message.walk() if not part.is_multipart()]


def document(plan: ClusterPlan, index: int = 0) -> dict[str, Any]:
    """Return the parsed #cloud-config."""
    parsed: dict[str, Any] = yaml.safe_load(parts(plan, index)[0][1])
    return parsed


def file(plan: ClusterPlan, index: int, path: str) -> str:
    """Return the text of a file in the install script."""
    _, _, rest = parts(plan, index)[1][1].partition(f"\n=== {path}\n")
    return re.split(r"^=== /", rest, maxsplit=1, flags=re.MULTILINE)[0]


def environment(text: str) -> dict[str, str]:
    """Parse a file that contains shell variables."""
    pairs = (line.split("=", 1) for line in text.splitlines())
    return {name: "".join(shlex.split(value)) for name, value in pairs}


@pytest.fixture(scope="module")
def cloud_init_program() -> str:
    """Path of cloud-init. The tests run its schema checker. If it is missing, the test is skipped, or fails in CI."""
    program = shutil.which("cloud-init", path=f"{ROOT / '.trainyard' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if program is None and not os.environ.get("CI"):
        pytest.skip("needs cloud-init: run tools/setup.sh")
    assert program is not None, "CI needs cloud-init"
    return program


def test_is_a_message_of_config_and_script(local_plan: ClusterPlan) -> None:
    config, script = parts(local_plan)
    assert (config[0], config[1].split("\n")[0]) == ("text/cloud-config", "#cloud-config")
    assert (script[0], script[1].split("\n")[0]) == ("text/x-shellscript", "#!/usr/bin/env bash")
    assert script[1] == cloud_init.install_script(local_plan, local_plan.head)


def test_sets_the_host_name(local_plan: ClusterPlan) -> None:
    for index, host in enumerate(local_plan.hosts):
        made = document(local_plan, index)
        assert (made["hostname"], made["fqdn"], made["manage_etc_hosts"]) == (host.name, host.name, False)


def test_users_of_the_head(local_plan: ClusterPlan) -> None:
    admin, trainer = document(local_plan, 0)["users"]
    assert (admin["name"], admin["uid"], admin["homedir"]) == ("ops", 1500, "/var/lib/ops")
    assert admin["ssh_authorized_keys"] == [KEYS.admin_public]
    assert (trainer["name"], trainer["uid"], trainer["homedir"]) == ("trainer", 2000, "/home/trainer")
    assert "ssh_authorized_keys" not in trainer
    assert "sudo" not in trainer


def test_users_of_a_worker(local_plan: ClusterPlan) -> None:
    admin, trainer = document(local_plan, 1)["users"]
    # The cluster key works only from the head, and only to run commands.
    assert admin["ssh_authorized_keys"] == [KEYS.admin_public, f'restrict,from="10.77.0.4" {KEYS.cluster_public}']
    # Workers mount /home from the head, so cloud-init must not write to it.
    assert trainer["no_create_home"] is True
    assert "ssh_authorized_keys" not in trainer


def test_shell_reads_node_env(local_plan: ClusterPlan) -> None:
    worker = local_plan.workers[1]
    assert file(local_plan, 2, "/etc/trainyard/birth.env") == birth_env(local_plan, worker)
    written = node_env(local_plan, worker)
    shell = subprocess.run(
        ["bash", "-euc", 'set -a; source /dev/stdin; env -0 | grep -z "^TRAINYARD_"'],
        input=written.encode(), capture_output=True, check=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert sorted(shell.stdout.decode().rstrip("\0").split("\0")) == [
        "TRAINYARD_CLUSTER=yard",
        "TRAINYARD_CONTAINERS=none",
        "TRAINYARD_DISTRIBUTION_MIRRORS=",
        "TRAINYARD_DRIVER=",
        "TRAINYARD_DRIVER_FROM=none",
        "TRAINYARD_FABRIC=ethernet",
        "TRAINYARD_GPUS=2",
        "TRAINYARD_GPU_DEVICE=/dev/fakegpu",
        "TRAINYARD_GPU_TYPE=fake",
        "TRAINYARD_GROUP=gpu",
        "TRAINYARD_HEAD_IP=10.77.0.4",
        "TRAINYARD_HEAD_NAME=yard-head",
        "TRAINYARD_MIRRORS=",
        "TRAINYARD_NETWORK=10.77.0.0/20",
        "TRAINYARD_NODE=yard-gpu-1",
        "TRAINYARD_OS=debian-13",
        "TRAINYARD_PRIVATE_IP=10.77.2.2",
        "TRAINYARD_RDMA=0",
        "TRAINYARD_RDMA_DEVICES=",
        "TRAINYARD_ROLE=worker",
        "TRAINYARD_SCHEDULER=slurm",
        "TRAINYARD_SHARED_DISK=",
        "TRAINYARD_SHARED_DOMAIN=",
        "TRAINYARD_SHARED_FOLDER=",
        "TRAINYARD_SHARED_NFS=4.2",
        "TRAINYARD_SHARED_SOURCE=",
    ]


def test_head_and_workers_have_the_same_variables(local_plan: ClusterPlan) -> None:
    head, worker = (environment(node_env(local_plan, host)) for host in local_plan.hosts[:2])
    assert head.keys() == worker.keys()
    assert (head["TRAINYARD_ROLE"], head["TRAINYARD_GROUP"], head["TRAINYARD_GPU_DEVICE"]) == ("head", "", "")


def test_quotes_shell_characters(local_plan: ClusterPlan) -> None:
    odd = replace(local_plan.head, name="a b'; reboot #")
    assert environment(node_env(local_plan, odd))["TRAINYARD_NODE"] == "a b'; reboot #"


def test_worker_does_not_depend_on_other_workers(local_plan: ClusterPlan) -> None:
    alone = replace(local_plan, workers=local_plan.workers[:1])
    worker = local_plan.workers[0]
    assert render_user_data(alone, worker, KEYS) == render_user_data(local_plan, worker, KEYS)


def test_does_not_depend_on_the_platform(local_plan: ClusterPlan) -> None:
    other = replace(local_plan, platform=PlatformSpec(provider="some-cloud", image="debian-13"))
    for mine, theirs in zip(local_plan.hosts, other.hosts, strict=True):
        assert render_user_data(local_plan, mine, KEYS) == render_user_data(other, theirs, KEYS)


def test_workers_differ_only_in_name_and_address(local_plan: ClusterPlan) -> None:
    first, second = (render_user_data(local_plan, host, KEYS) for host in local_plan.workers)
    assert first.replace("yard-gpu-0", "yard-gpu-1").replace("10.77.2.1", "10.77.2.2") == second


def test_contains_no_secrets(plan_of_each_image: ClusterPlan) -> None:
    for host in plan_of_each_image.hosts:
        text = render_user_data(plan_of_each_image, host, KEYS)
        assert not re.search(
            r"PRIVATE KEY|BEGIN |passwd:|password:|chpasswd|v1:[A-Za-z0-9+/]{8}", text.replace("lock_passwd", "")
        )
        assert max(len(word) for word in re.findall(r"[A-Za-z0-9+/]+={0,2}", text)) < 120, "an encoded secret?"


def test_azure_image_gets_an_rsa_host_key(local_plan: ClusterPlan) -> None:
    on_azure = replace(local_plan, image=images()["azure-ubuntu-24.04-hpc"])
    for index in range(len(on_azure.hosts)):
        assert set(document(on_azure, index)["ssh_genkeytypes"]) == {"ed25519", "rsa"}
    assert document(local_plan)["ssh_genkeytypes"] == ["ed25519"]


def test_google_agent_does_not_replace_host_keys(tmp_path: Path, local_plan: ClusterPlan) -> None:
    on_google = replace(local_plan, image=images()["gcp-ubuntu-24.04-nvidia-580"])
    written = document(on_google)["write_files"]
    assert [file["path"].rpartition("/")[2] for file in written] == [
        "instance_configs.cfg",
        "instance_configs.cfg.template",
    ]
    for file in written:
        # Merges repeated sections, as the agent does. The last value of a key applies.
        merged = configparser.ConfigParser(strict=False)
        merged.read_string("[InstanceSetup]\nhost_key_types = rsa\nset_host_keys = true" + file["content"])
        assert file["append"] is True
        assert merged["InstanceSetup"]["set_host_keys"] == "false"


def test_cloud_config_of_each_image_is_valid(tmp_path: Path, local_plan: ClusterPlan, cloud_init_program: str) -> None:
    plans = [replace(local_plan, image=image) for image in images().values()]
    # Many images produce the same text, which is checked once, because each run of the checker takes half a second.
    heads = {cloud_init.cloud_config(plan, plan.head, KEYS) for plan in plans}
    texts = {*heads, cloud_init.cloud_config(local_plan, local_plan.workers[0], KEYS)}
    for number, text in enumerate(sorted(texts)):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        done = subprocess.run([cloud_init_program, "schema", "-c", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "alid schema" in done.stdout


def test_merge_concatenates_lists_and_refuses_two_values() -> None:
    first = {"a": [1], "c": 3}
    assert merge(first, {"a": [2], "d": None}) == {"a": [1, 2], "c": 3, "d": None}
    assert first == {"a": [1], "c": 3}
    for second in ({"c": 4}, {"a": 1}, {"a": None}):
        with pytest.raises(CatalogError, match=r"fragments set [ac]; keep it in one"):
            merge(first, second)


def test_refuses_fragments_with_generated_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_plan: ClusterPlan
) -> None:
    (tmp_path / "base.yaml").write_text("#cloud-config\nhostname: mine\n")
    (tmp_path / "head.yaml").write_text("#cloud-config\n")
    monkeypatch.setattr(cloud_init, "_FOLDER", tmp_path)
    with pytest.raises(CatalogError, match="hostname, which are generated for each host"):
        cloud_init._shared.__wrapped__(local_plan.head.role, local_plan.image.name)


@pytest.mark.parametrize("path", sorted((ROOT / "cloud-init").glob("*.yaml")), ids=lambda path: path.name)
def test_each_fragment_is_cloud_config(path: Path) -> None:
    assert path.read_text().startswith("#cloud-config\n")
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_schema_checker_refuses_invalid_config(tmp_path: Path, cloud_init_program: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("#cloud-config\nwrite_files:\n- path: /x\n  permissions: 0644\n")
    assert subprocess.run([cloud_init_program, "schema", "-c", file], capture_output=True, check=False).returncode != 0


def test_the_identity_of_machines_does_not_change(local_plan: ClusterPlan) -> None:
    """Other values would replace the machines of all existing stacks."""
    found = [birth_of(local_plan, host, KEYS).identity[:16] for host in local_plan.hosts[:2]]
    assert found == ["7c035d9f1294c32c", "d9bd38593af0c446"]
