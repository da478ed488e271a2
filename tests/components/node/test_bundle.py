"""Content and digest of the bundle."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from components.node.bundle import Bundle, render_bundle
from components.node.parameters import ON_HEAD, SharedFiles, fabric_env, kind_env, storage_env
from components.plan.plan import ClusterPlan
from components.stackfile.read import read_stack
from tests.stack_texts import STACKS


def members(bundle: Bundle) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(bundle.archive)) as archive:
        opened = {entry.name: archive.extractfile(entry) for entry in archive}
    return {name: file.read().decode() for name, file in opened.items() if file is not None}


def test_equal_plans_have_equal_bundles(local_plan: ClusterPlan) -> None:
    first, second = render_bundle(local_plan, ON_HEAD), render_bundle(replace(local_plan), ON_HEAD)
    assert first == second
    assert first.digest == hashlib.sha256(first.archive).hexdigest()


def test_count_of_a_group_does_not_change_the_bundle(local_plan: ClusterPlan) -> None:
    alone = replace(local_plan, workers=local_plan.workers[:1])
    assert render_bundle(alone, ON_HEAD) == render_bundle(local_plan, ON_HEAD)


def test_each_kind_has_its_parameters(local_plan: ClusterPlan) -> None:
    files = members(render_bundle(local_plan, SharedFiles(disk="/dev/x")))
    for kind, host in {"head": local_plan.head, "worker-gpu": local_plan.workers[0]}.items():
        assert files[f"kinds/{kind}/kind.env"] == kind_env(local_plan, host)
        assert files[f"kinds/{kind}/fabric.env"] == fabric_env(host)
        assert files[f"kinds/{kind}/storage.env"] == storage_env(host, SharedFiles(disk="/dev/x"))
    assert "NCCL_IB_DISABLE=1" in files["kinds/worker-gpu/fabric.env"]


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.name)
def test_bundle_has_all_files_of_its_stages(file: Path) -> None:
    files = members(render_bundle(read_stack(file).plan, ON_HEAD))
    for path, names in files.items():
        if path.endswith("/stages"):
            assert names.splitlines() == sorted(names.splitlines())
            for name in names.splitlines():
                text = files[f"stages/{name}"]
                assert "source /usr/local/lib/trainyard/packages.sh" not in text or "packages.sh" in files


def test_stages_of_other_fabrics_are_left_out(local_plan: ClusterPlan) -> None:
    assert "stages/45-transport" not in members(render_bundle(local_plan, ON_HEAD))
    docker = members(render_bundle(replace(local_plan, containers="docker"), ON_HEAD))
    assert "44-containers\n" in docker["kinds/worker-gpu/stages"]
    assert "45-transport" not in docker["kinds/worker-gpu/stages"]


def test_bundle_contains_no_secrets(local_plan: ClusterPlan) -> None:
    for path, text in members(render_bundle(local_plan, ON_HEAD)).items():
        assert "PRIVATE KEY-" not in text, path


def test_programs_of_the_bundle_run_without_the_checkout(local_plan: ClusterPlan, tmp_path: Path) -> None:
    for path, text in members(render_bundle(local_plan, ON_HEAD)).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    code = "import health.program, repair.service, gate.program, bandwidth.program; from trainyard.faults import UPDATE"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}; print(UPDATE)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"drain_reason={done.stdout}" in (tmp_path / "reasons.sh").read_text()
