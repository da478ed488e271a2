"""User-data: what is in it, what must never be, and that cloud-init itself accepts it."""

from __future__ import annotations

import configparser
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

from components import cloud_init
from components.catalog import images
from components.cloud_init import AccessKeys, fabric_env, merge, node_env, render_user_data
from components.errors import CatalogError
from components.plan import ClusterPlan

ROOT = Path(__file__).parent.parent
KEYS = AccessKeys("ssh-ed25519 AAAAadmin admin@yard", "ssh-ed25519 AAAAcluster cluster@yard")


def parts(plan: ClusterPlan, index: int = 0) -> list[dict[str, str]]:
    """Return the archive's parts, as cloud-init reads them."""
    loaded: list[dict[str, str]] = yaml.safe_load(render_user_data(plan, plan.hosts[index], KEYS))
    return loaded


def document(plan: ClusterPlan, index: int = 0) -> dict[str, Any]:
    """Return what cloud-init itself carries out."""
    parsed: dict[str, Any] = yaml.safe_load(parts(plan, index)[0]["content"])
    return parsed


def file(plan: ClusterPlan, index: int, path: str) -> str:
    """Return a file's text as the install script carries it."""
    _, _, rest = parts(plan, index)[1]["content"].partition(f"\n=== {path}\n")
    return re.split(r"^=== /", rest, maxsplit=1, flags=re.MULTILINE)[0]


def environment(text: str) -> dict[str, str]:
    """Return a file's variables as a shell would read them."""
    pairs = (line.split("=", 1) for line in text.splitlines())
    return {name: "".join(shlex.split(value)) for name, value in pairs}


def test_it_is_an_archive_that_cloud_init_knows(local_plan: ClusterPlan) -> None:
    assert render_user_data(local_plan, local_plan.head, KEYS).startswith("#cloud-config-archive\n")
    config, script = parts(local_plan)
    assert (config["type"], config["content"].split("\n")[0]) == ("text/cloud-config", "#cloud-config")
    assert (script["type"], script["content"].split("\n")[0]) == ("text/x-shellscript", "#!/usr/bin/env bash")


def test_the_document_names_its_host(local_plan: ClusterPlan) -> None:
    for index, host in enumerate(local_plan.hosts):
        made = document(local_plan, index)
        assert (made["hostname"], made["fqdn"], made["manage_etc_hosts"]) == (host.name, host.name, False)


def test_users_of_the_head(local_plan: ClusterPlan) -> None:
    admin, trainer = document(local_plan, 0)["users"]
    assert (admin["name"], admin["uid"], admin["homedir"]) == ("ops", 1500, "/var/lib/ops")
    assert admin["ssh_authorized_keys"] == [KEYS.admin_public]
    assert (trainer["name"], trainer["uid"], trainer["homedir"]) == ("trainer", 2000, "/home/trainer")
    assert trainer["ssh_authorized_keys"] == [KEYS.admin_public]
    assert "sudo" not in trainer


def test_users_of_a_worker(local_plan: ClusterPlan) -> None:
    admin, trainer = document(local_plan, 1)["users"]
    # Only the head may use the cluster's key, and only to run commands.
    assert admin["ssh_authorized_keys"] == [KEYS.admin_public, f'restrict,from="10.77.0.4" {KEYS.cluster_public}']
    # cloud-init must write nothing under /home, which is the head's.
    assert trainer["no_create_home"] is True
    assert "ssh_authorized_keys" not in trainer


def test_node_env_is_what_a_shell_reads(local_plan: ClusterPlan) -> None:
    worker = local_plan.workers[1]
    written = file(local_plan, 2, "/etc/trainyard/node.env")
    assert written == node_env(local_plan, worker)
    shell = subprocess.run(
        ["bash", "-euc", 'set -a; source /dev/stdin; env -0 | grep -z "^TRAINYARD_"'],
        input=written.encode(), capture_output=True, check=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert sorted(shell.stdout.decode().rstrip("\0").split("\0")) == [
        "TRAINYARD_CLUSTER=yard",
        "TRAINYARD_CONTAINERS=none",
        "TRAINYARD_DRIVER=",
        "TRAINYARD_FABRIC=ethernet",
        "TRAINYARD_GPUS=2",
        "TRAINYARD_GPU_DEVICE=/dev/fakegpu",
        "TRAINYARD_GPU_TYPE=fake",
        "TRAINYARD_GROUP=gpu",
        "TRAINYARD_HEAD_IP=10.77.0.4",
        "TRAINYARD_HEAD_NAME=yard-head",
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


def test_the_head_has_the_same_parameters(local_plan: ClusterPlan) -> None:
    head, worker = (environment(node_env(local_plan, host)) for host in local_plan.hosts[:2])
    assert head.keys() == worker.keys()
    assert (head["TRAINYARD_ROLE"], head["TRAINYARD_GROUP"], head["TRAINYARD_GPU_DEVICE"]) == ("head", "", "")


def test_a_value_with_shell_characters_stays_one_value(local_plan: ClusterPlan) -> None:
    odd = replace(local_plan.head, name="a b'; reboot #")
    assert environment(node_env(local_plan, odd))["TRAINYARD_NODE"] == "a b'; reboot #"


def test_fabric_env_is_the_catalogs(local_plan: ClusterPlan) -> None:
    text = file(local_plan, 1, "/etc/trainyard/fabric.env")
    assert text == fabric_env(local_plan, local_plan.workers[0])
    assert environment(text)["NCCL_IB_DISABLE"] == "1"


def test_a_worker_is_the_same_whoever_else_works(local_plan: ClusterPlan) -> None:
    alone = replace(local_plan, workers=local_plan.workers[:1])
    worker = local_plan.workers[0]
    assert render_user_data(alone, worker, KEYS) == render_user_data(local_plan, worker, KEYS)


def test_the_platform_leaves_no_trace(local_plan: ClusterPlan) -> None:
    other = replace(local_plan, provider="some-cloud")
    for mine, theirs in zip(local_plan.hosts, other.hosts, strict=True):
        assert render_user_data(local_plan, mine, KEYS) == render_user_data(other, theirs, KEYS)


def test_workers_differ_in_name_and_address_only(local_plan: ClusterPlan) -> None:
    first, second = (render_user_data(local_plan, host, KEYS) for host in local_plan.workers)
    assert first.replace("yard-gpu-0", "yard-gpu-1").replace("10.77.2.1", "10.77.2.2") == second


def test_no_secret_is_in_it(plan_of_each_image: ClusterPlan) -> None:
    for host in plan_of_each_image.hosts:
        text = render_user_data(plan_of_each_image, host, KEYS)
        assert not re.search(
            r"PRIVATE KEY|BEGIN |passwd:|password:|chpasswd|v1:[A-Za-z0-9+/]{8}", text.replace("lock_passwd", "")
        )
        assert max(len(word) for word in re.findall(r"[A-Za-z0-9+/]+={0,2}", text)) < 120, "an encoded secret?"


def test_azures_image_gets_the_rsa_key_its_agent_awaits(local_plan: ClusterPlan) -> None:
    on_azure = replace(local_plan, image=images()["azure-ubuntu-24.04-hpc"])
    for index in range(len(on_azure.hosts)):
        assert set(document(on_azure, index)["ssh_genkeytypes"]) == {"ed25519", "rsa"}
    assert document(local_plan)["ssh_genkeytypes"] == ["ed25519"]


def test_googles_agent_must_not_replace_host_keys(tmp_path: Path, local_plan: ClusterPlan) -> None:
    on_google = replace(local_plan, image=images()["gcp-ubuntu-24.04-nvidia-580"])
    written = document(on_google)["write_files"]
    assert [file["path"].rpartition("/")[2] for file in written] == [
        "instance_configs.cfg",
        "instance_configs.cfg.template",
    ]
    for file in written:
        # As the agent reads it: a section that occurs twice is one section, and the last value of a key applies.
        merged = configparser.ConfigParser(strict=False)
        merged.read_string("[InstanceSetup]\nhost_key_types = rsa\nset_host_keys = true" + file["content"])
        assert file["append"] is True
        assert merged["InstanceSetup"]["set_host_keys"] == "false"


def test_every_image_yields_valid_cloud_config(tmp_path: Path, plan_of_each_image: ClusterPlan) -> None:
    program = shutil.which("cloud-init", path=f"{ROOT / '.trainyard' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("cloud-init's schema checker is not there; tools/setup.sh fetches it")
    file = tmp_path / "head.yaml"
    file.write_text(cloud_init.cloud_config(plan_of_each_image, plan_of_each_image.head, KEYS))
    checked = subprocess.run([program, "schema", "-c", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_merging_chains_lists_and_joins_mappings() -> None:
    first = {"a": [1], "b": {"x": 1, "y": {"z": [1]}}, "c": 3}
    second = {"a": [2], "b": {"y": {"z": [2]}, "w": 0}, "c": 3, "d": None}
    assert merge(first, second) == {"a": [1, 2], "b": {"x": 1, "y": {"z": [1, 2]}, "w": 0}, "c": 3, "d": None}
    assert first == {"a": [1], "b": {"x": 1, "y": {"z": [1]}}, "c": 3}


@pytest.mark.parametrize(("first", "second"), [(1, 2), ([1], {"x": 1}), ("a", None), (True, 1)])
def test_fragments_that_disagree_are_refused(first: object, second: object) -> None:
    with pytest.raises(CatalogError, match=r"disagree about outer\.key"):
        merge({"outer": {"key": first}}, {"outer": {"key": second}})


def test_a_fragment_must_leave_generated_keys_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_plan: ClusterPlan
) -> None:
    (tmp_path / "base.yaml").write_text("#cloud-config\nhostname: mine\n")
    (tmp_path / "head.yaml").write_text("#cloud-config\n")
    monkeypatch.setattr(cloud_init, "_FOLDER", tmp_path)
    with pytest.raises(CatalogError, match="hostname, which are written for each host"):
        cloud_init._shared.__wrapped__(local_plan.head.role, local_plan.image.name)


@pytest.mark.parametrize("path", sorted((ROOT / "cloud-init").glob("*.yaml")), ids=lambda path: path.name)
def test_a_fragment_is_cloud_config_by_itself(path: Path) -> None:
    assert path.read_text().startswith("#cloud-config\n")
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_cloud_init_accepts_every_role(tmp_path: Path, local_plan: ClusterPlan) -> None:
    # A subprocess, since only cloud-init itself knows its schema.
    program = shutil.which("cloud-init", path=f"{ROOT / '.trainyard' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if program is None and not os.environ.get("CI"):
        pytest.skip("cloud-init's schema checker is not there; tools/setup.sh fetches it")
    assert program is not None, "cloud-init's schema checker is required where CI is set"
    for host in local_plan.hosts[:2]:
        file = tmp_path / f"{host.role}.yaml"
        # As a whole cloud-init says that it is an archive; its schema judges the part by itself.
        file.write_text(cloud_init.cloud_config(local_plan, host, KEYS))
        whole = tmp_path / f"{host.role}-archive.yaml"
        whole.write_text(render_user_data(local_plan, host, KEYS))
        assert subprocess.run([program, "schema", "-c", whole], capture_output=True, check=False).returncode == 0
        checked = subprocess.run([program, "schema", "-c", file], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "alid schema" in checked.stdout


def test_the_schema_checker_refuses_what_is_wrong(tmp_path: Path) -> None:
    program = shutil.which("cloud-init", path=f"{ROOT / '.trainyard' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("cloud-init's schema checker is not there; tools/setup.sh fetches it")
    file = tmp_path / "wrong.yaml"
    file.write_text("#cloud-config\nwrite_files:\n- path: /x\n  permissions: 0644\n")
    assert subprocess.run([program, "schema", "-c", file], capture_output=True, check=False).returncode != 0
