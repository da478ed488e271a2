"""The stages for exports and the hostfile, in a sandbox with recorded commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Sandbox
from tests.cloud_init.test_stage_storage import ON_DISK

NODES = "c-gpu-0 10.77.2.4 gpu 8 any\nc-gpu-1 10.77.2.5 gpu 8 any\n"


def exports(tmp_path: Path, nodes: str, **env: str) -> list[str]:
    (tmp_path / "nodes").write_text(nodes)
    ran = Sandbox(tmp_path, ("exportfs",), {}).run("65-exports", **{**ON_DISK, "TEST_HANDOVER": str(tmp_path)}, **env)
    assert (ran.code, ran.commands) == (0, ["exportfs -ra"]), ran.errors
    return (tmp_path / "etc/exports.d/trainyard.exports").read_text().replace(str(tmp_path), "").splitlines()


def test_exports_list_only_hosts_of_the_hand_over(tmp_path: Path) -> None:
    assert [line.partition("(")[0] for line in exports(tmp_path, NODES)] == [
        "/home 10.77.2.4/32",
        "/home 10.77.2.5/32",
        "/shared 10.77.2.4/32",
        "/shared 10.77.2.5/32",
    ]
    assert "10.77.2.5" not in "".join(exports(tmp_path, NODES.splitlines(keepends=True)[0]))
    assert exports(tmp_path, "") == []


def test_exports_of_existing_hosts_use_subtree_check(tmp_path: Path) -> None:
    # Otherwise, forged file handles could open other files in the file system.
    lines = exports(tmp_path, NODES, TEST_LEDGER="1")
    assert {line.split()[0] for line in lines} == {"/home/trainer", "/shared"}
    assert all(",subtree_check," in line for line in lines)


@pytest.mark.parametrize("env", [{"ROLE": "worker"}, {"SHARED_SOURCE": "10.9.8.2:/vol"}])
def test_other_nodes_export_nothing(tmp_path: Path, env: dict[str, str]) -> None:
    ran = Sandbox(tmp_path, ("exportfs",), {}).run("65-exports", **{**ON_DISK, "TEST_HANDOVER": str(tmp_path), **env})
    assert (ran.code, ran.commands) == (0, [])


@pytest.mark.parametrize(("scheduler", "there"), [("none", True), ("slurm", False)])
def test_only_a_head_without_scheduler_has_a_hostfile(tmp_path: Path, scheduler: str, there: bool) -> None:
    (tmp_path / "hostfile").write_text("a slots=8\n")
    env = {"ROLE": "head", "SCHEDULER": scheduler, "TEST_HANDOVER": str(tmp_path)}
    ran = Sandbox(tmp_path, (), {}).run("75-hostfile", **env)
    assert ran.code == 0, ran.errors
    assert (tmp_path / "job" / "hostfile").exists() == there


def test_hostfile_is_removed_if_the_cluster_gets_slurm(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a slots=8\n")
    for scheduler in ("none", "slurm"):
        ran = Sandbox(tmp_path, (), {}).run(
            "75-hostfile", ROLE="head", SCHEDULER=scheduler, TEST_HANDOVER=str(tmp_path)
        )
        assert ran.code == 0, ran.errors
    assert not (tmp_path / "job" / "hostfile").exists()


@pytest.mark.parametrize(("was", "left"), [("copy", "theirs\n"), ("absent", None), (None, "here\n")])
def test_hostfile_of_an_existing_head_is_restored(tmp_path: Path, was: str | None, left: str | None) -> None:
    ledger, file = tmp_path / "ledger", tmp_path / "job" / "hostfile"
    (ledger / "copies" / "job").mkdir(parents=True)
    (ledger / "copies" / "job" / "hostfile").write_text("theirs\n")
    (ledger / "notes").write_text(f"{file}\t{was}\n" if was else "")
    file.parent.mkdir()
    file.write_text("here\n")
    ran = Sandbox(tmp_path, (), {}).run("75-hostfile", ROLE="head", TEST_LEDGER=str(ledger))
    assert ran.code == 0, ran.errors
    assert (file.read_text() if file.exists() else None) == left
