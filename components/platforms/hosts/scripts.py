"""The scripts that are run on a host as root: what is under node/, with one host's parameters before it. Pure."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from components.cloud_init import AccessKeys, SharedFiles, install_script, people
from components.install import shipped_files
from components.plan import ClusterPlan, HostPlan

AS_ROOT = 'if [ "$(id -u)" = 0 ]; then exec bash -s; else exec sudo -n bash -s; fi'
"""The command that runs a script from its standard input: nothing of it stands in a list of processes."""

GIVE_BACK = (
    'f=/var/lib/trainyard/borrowed/give-back; s=sudo; [ "$(id -u)" != 0 ] || s=; '
    'if $s test -e "$f"; then exec $s "$f"; else echo \'given back before\'; fi'
)

_NEIGHBOURS = 4
_FOLDER = Path(__file__).parent / "node"
# systemd may know units from before they were changed; a bootstrap under way finds what is new by itself.
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
    "/etc/trainyard/node.env",
    "/etc/trainyard/fabric.env",
    "/var/lib/ops",
)
"""What the install script, its service and the daemons write beside the shipped files."""


@dataclass(frozen=True, kw_only=True)
class SharedFolder:
    """Where the head keeps /shared. `path`: a folder of it, or empty for /shared itself. `gib`: space that it needs."""

    path: str = ""
    gib: int = 0


def survey_script(plan: ClusterPlan, host: HostPlan, interface: str | None, shared: SharedFolder) -> str:
    """Return the script that compares a host with its plan. It changes nothing."""
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
        "FABRIC": machine.fabric,
        "CONTAINERS": plan.containers if host.works else "none",
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
    """Return the script that tries the ways from a host to the head and to the hosts after it in the plan."""
    facts = {"NODE": host.name, "PEERS": " ".join(f"{peer.name}={peer.private_ip}" for peer in peers(plan, host))}
    return _whole(f"{_parameters(facts)}export BORROW_NODE BORROW_PEERS\n{_python('reach')}")


def peers(plan: ClusterPlan, host: HostPlan) -> tuple[HostPlan, ...]:
    """Return the hosts that a host is tried with: the head and the next four, since rules rarely name single hosts."""
    place = plan.hosts.index(host)
    following = (*plan.hosts[place + 1 :], *plan.hosts[:place])[:_NEIGHBOURS]
    head = () if host is plan.head or plan.head in following else (plan.head,)
    return (*head, *following)


def lease_script(plan: ClusterPlan, host: HostPlan, keys: AccessKeys, *, keep_files: bool, shared: SharedFolder) -> str:
    """Return what begins the ledger and makes the users. Run again, it brings keys and programs up to date."""
    admin, job_user = people(plan.head.private_ip, host.role, keys)
    paths = sorted({*(file.path for file in shipped_files()), *_OTHER_PATHS})
    facts = {
        "CLUSTER": plan.name,
        "ROLE": host.role.value,
        "SCHEDULER": plan.scheduler,
        "KEEP_FILES": "yes" if keep_files else "no",
        "ADMIN_KEYS": "\n".join(admin["ssh_authorized_keys"]),
        "JOB_KEYS": "\n".join(job_user.get("ssh_authorized_keys", ())),
        "PATHS": "\n".join(paths),
        "SHARED_FOLDER": shared.path,
    }
    programs = "".join(
        f"  {name}) cat <<'END-OF-PROGRAM' ;;\n{_text(name)}END-OF-PROGRAM\n" for name in ("remember", "give-back")
    )
    return _whole(f"{_parameters(facts)}program() {{ case $1 in\n{programs}esac; }}\n{_text('lease')}")


def bring_up_script(plan: ClusterPlan, host: HostPlan, shared: SharedFolder) -> str:
    """Return the install script, the same as in user-data but for how the bootstrap begins, or begins again."""
    return _whole(install_script(plan, host, SharedFiles(folder=shared.path), begin=_BEGIN))


def digest(script: str) -> str:
    """Return a short name of a script's content."""
    return hashlib.sha256(script.encode()).hexdigest()[:16]


def _whole(script: str) -> str:
    """Make a shell read all of a script before it runs any: it may come in half, and what it runs may read too."""
    return f"{{\n{script}exit\n}} </dev/null\n"


def _python(name: str) -> str:
    """Return a command that runs a Python program. The survey refuses a host without Python, so it is no error here."""
    return f"! command -v python3 >/dev/null || python3 - <<'END-OF-PROGRAM'\n{_text(name)}END-OF-PROGRAM\n"


def _parameters(facts: Mapping[str, str]) -> str:
    return "".join(f"BORROW_{name}={shlex.quote(value)}\n" for name, value in facts.items())


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text()
