"""Scripts that run on a host as root. Each script sets parameters and includes files from node/. Imports no SDK."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from components.node.files import changed_paths, driver_version
from components.node.user_data import AccessKeys, admin_keys, install_script
from components.plan.plan import ClusterPlan, HostPlan

AS_ROOT = 'if [ "$(id -u)" = 0 ]; then exec bash -s; else exec sudo -n bash -s; fi'
"""Command that runs a script from standard input. Unlike arguments, standard input is not visible in process lists."""

GIVE_BACK = (
    'f=/var/lib/trainyard/borrowed/give-back; s=sudo; [ "$(id -u)" != 0 ] || s=; '
    'if $s test -e "$f"; then exec $s "$f"; else echo \'already restored\'; fi'
)

_NEIGHBOURS = 4
_FOLDER = Path(__file__).parent / "node"
# daemon-reload applies changed units. A bootstrap that is still running detects changes, so only a finished one is
# restarted.
_BEGIN = """rm -f /var/lib/trainyard/status.json
systemctl daemon-reload
if [[ $(systemctl show -p ActiveState --value trainyard-bootstrap.service) == active ]]; then
  systemctl restart --no-block trainyard-bootstrap.service
else
  systemctl start --no-block trainyard-bootstrap.service
fi
cat /var/lib/trainyard/borrowed/number"""

_OTHER_PATHS = (
    "/etc/systemd/system/multi-user.target.wants/trainyard-bootstrap.service",
    "/etc/sudoers.d/90-trainyard",
    "/etc/trainyard/birth.env",
    "/etc/trainyard/node.env",
    "/etc/trainyard/fabric.env",
    "/var/lib/ops",
)
"""Paths that the bring-up creates in addition to the shipped files."""


@dataclass(frozen=True, kw_only=True)
class SharedFolder:
    """The folder on the head that becomes /shared ("" for /shared itself), and the free space that it needs."""

    path: str = ""
    gib: int = 0


def survey_script(plan: ClusterPlan, host: HostPlan, interface: str | None, shared: SharedFolder) -> str:
    """Return the script that compares a host with its plan, without changing the host."""
    machine = host.machine
    facts = {
        "CLUSTER": plan.name,
        "NODE": host.name,
        "ROLE": host.role.value,
        "SCHEDULER": plan.scheduler,
        "OS": plan.image.os,
        "MACHINE": machine.name,
        "CPUS": str(machine.vcpus),
        "MEMORY_MIB": str(machine.schedulable_memory_mib),
        "GPUS": str(machine.gpus),
        "GPU_TYPE": machine.gpu_type or "",
        "DRIVER": driver_version(plan, host),
        "DRIVER_FROM": host.driver,
        "FABRIC": machine.fabric,
        "CONTAINERS": plan.containers if host.runs_jobs else "none",
        "RDMA": str(machine.rdma),
        "RDMA_DEVICES": ",".join(machine.rdma_devices),
        "PRIVATE_IP": str(host.private_ip),
        "HEAD_IP": str(plan.head.private_ip),
        "INTERFACE": interface or "",
        "SHARED_FOLDER": shared.path,
        "SHARED_GIB": str(shared.gib),
    }
    return _whole(_parameters(facts) + _text("survey-login") + _text("survey-storage") + _text("survey"))


def reach_script(plan: ClusterPlan, host: HostPlan) -> str:
    """Return the script that tests a host's connections to its peers."""
    facts = {"NODE": host.name, "PEERS": " ".join(f"{peer.name}={peer.private_ip}" for peer in peers(plan, host))}
    # On a host without Python, the script does nothing, because the survey reports this fault.
    program = f"! command -v python3 >/dev/null || python3 - <<'END-OF-PROGRAM'\n{_text('reach')}END-OF-PROGRAM\n"
    return _whole(f"{_parameters(facts)}export PLAN_NODE PLAN_PEERS\n{program}")


def peers(plan: ClusterPlan, host: HostPlan) -> tuple[HostPlan, ...]:
    """Return the hosts to which `host` tests its connections: the head and the next four hosts in the plan.

    Four peers are enough, because firewall rules rarely apply to individual hosts.
    """
    index = plan.hosts.index(host)
    following = (*plan.hosts[index + 1 :], *plan.hosts[:index])[:_NEIGHBOURS]
    head = () if host is plan.head or plan.head in following else (plan.head,)
    return (*head, *following)


def lease_script(plan: ClusterPlan, host: HostPlan, keys: AccessKeys, *, keep_files: bool, shared: SharedFolder) -> str:
    """Return the script that creates the users and the ledger, which records the host's earlier state.

    If the users and the ledger exist, the script updates the users' keys and the ledger's programs.
    """
    # sshd keeps reading this file, so it contains no line for the admin. After the hand-over, the admin's lines are in
    # /etc/trainyard (66-people), where a rotated key is refused.
    provisioner, _, from_head = admin_keys(plan.head.private_ip, keys.authority)
    paths = sorted({*changed_paths(), *_OTHER_PATHS})
    facts = {
        "CLUSTER": plan.name,
        "ROLE": host.role.value,
        "SCHEDULER": plan.scheduler,
        "KEEP_FILES": "yes" if keep_files else "no",
        "ADMIN_KEYS": f"{provisioner}\n{from_head}",
        "PATHS": "\n".join(paths),
        "SHARED_FOLDER": shared.path,
    }
    programs = "".join(
        f"  {name}) cat <<'END-OF-PROGRAM' ;;\n{_text(name)}END-OF-PROGRAM\n" for name in ("remember", "give-back")
    )
    return _whole(f"{_parameters(facts)}program() {{ case $1 in\n{programs}esac; }}\n{_text('lease')}")


def bring_up_script(plan: ClusterPlan, host: HostPlan) -> str:
    """Return user-data's install script, followed by commands that start or restart the bootstrap."""
    return _whole(install_script(plan, host, begin=_BEGIN))


def _whole(script: str) -> str:
    """Return a script that the shell reads completely before it runs the first command.

    Otherwise, a broken connection could end the script halfway, and a command could read the rest as its input.
    """
    return f"{{\n{script}exit\n}} </dev/null\n"


def _parameters(facts: Mapping[str, str]) -> str:
    return "".join(f"PLAN_{name}={shlex.quote(value)}\n" for name, value in facts.items())


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text()
