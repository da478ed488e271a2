"""A local cluster from a project in which only the wheel is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from components.platforms.local.paths import cache_folder
from tests.packaging.test_wheel import User, build

pytestmark = [pytest.mark.integration, pytest.mark.full]

QUICK = ("--yes", "--skip-preview", "--non-interactive", "--suppress-outputs")


def test_a_job_runs_on_the_cluster_of_a_new_project(tmp_path: Path) -> None:
    user = User(tmp_path)
    (user.packages / "asyncssh.py").unlink()  # the replacement of the pulumi-command plugin imports the real module
    user.install(build(tmp_path / "wheel", "0.1.0"))
    (tmp_path / "state").mkdir()
    user.more = {
        "PULUMI_BACKEND_URL": f"file://{tmp_path}/state?metadata=skip",
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_HOME": os.environ["PULUMI_HOME"],  # contains the pulumi-command plugin
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "TRAINYARD_CACHE": str(cache_folder()),
    }
    user.run(tmp_path, "yard", "new", "mine", "--provider", "local", "--machine", "vm-gpu2", "--count", "2")
    project = tmp_path / "mine"
    (project / ".venv").symlink_to(user.environment)  # instead of `pulumi install`
    file = project / "stacks" / "Pulumi.mine.yaml"
    file.write_text(file.read_text().replace("provider: local", "provider: local\n      ssh_port_base: 23400"))
    user.run(project, "pulumi", "stack", "select", "--create", "mine")
    try:
        user.run(project, "pulumi", "up", "-s", "mine", *QUICK, seconds=900)
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts" / "mine.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of my script')\n")
        words = ["yard", "submit", "../scripts/mine.py", "--nodes", "2", "--launcher", "srun", "--follow"]
        done = user.run(project, *words, seconds=600)
        assert "rank 0 of my script" in done.stdout
        assert "rank 1 of my script" in user.run(project, "yard", "logs", "last", "--rank", "1").stdout
        assert "COMPLETED: every rank ended with exit code 0" in done.stdout + done.stderr
        assert list((project / ".trainyard" / "ssh" / "mine").glob("id_ed25519*"))
    finally:
        user.run(project, "pulumi", "destroy", "-s", "mine", *QUICK, seconds=300)
    assert list((project / ".trainyard" / "run").rglob("qemu.pid")) == []
