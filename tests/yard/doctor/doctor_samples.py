"""Output of the probes on healthy hosts, and the lines that a faulty host prints instead."""

from __future__ import annotations

import json

HEAD, FIRST, SECOND = "yard-head", "yard-gpu-0", "yard-gpu-1"
BOOT = "8b169027-b633-4019-9fb9-af6189d6cf7d"
READY = json.dumps({"node": "x", "boot_id": BOOT, "state": "ready", "stage": ""})
RUNNING = json.dumps({"node": "x", "boot_id": BOOT, "state": "running", "stage": "70-slurm"})
NFS = "rw,noatime,vers=4.2,rsize=131072,wsize=131072,namlen=255,hard,proto=tcp,nconnect=4,timeo=600,retrans=2"
CHRONY = "clock\tchrony\t0.000012\tNormal"

Lines = dict[str, list[str]]
PORT = "infiniband\tmlx5_ib0/1\t4: ACTIVE\t400 Gb/sec (4X NDR)\tInfiniBand"
ROW = "topology\tGPU0\tX NV18"
RAN = "health\tran"
REAL_GPUS = [
    "driver\tversion\t580.159",
    "driver\tdirect\tnvidia-peermem",
    ROW,
    "topology\tGPU1\tNV18 X",
    PORT,
    "infiniband\tmlx5_an0/1\t1: DOWN\t40 Gb/sec (4X QDR)\tEthernet",
]
"""Lines that a worker with an RDMA card and GPUs connected through NVSwitch also prints."""


def healthy() -> Lines:
    """Return the output of three healthy hosts, recorded on real hosts except for the systemd and NFS lines."""
    addresses = {HEAD: "10.77.0.4", FIRST: "10.77.2.1", SECOND: "10.77.2.2"}
    lines: Lines = {}
    for number, (host, address) in enumerate(addresses.items()):
        others = {name: ip for name, ip in addresses.items() if name != host}
        units = ("nfs-server", "mariadb", "slurmdbd", "slurmctld") if host == HEAD else ("slurmd",)
        lines[host] = [
            f"status\tboot_id\t{BOOT}",
            f"status\tjson\t{READY}",
            *(f"services\t{unit}\tactive" for unit in ("munge", "chrony", "ssh", *units)),
            *(f"names\t{name}\t{ip}" for name, ip in addresses.items()),
            "routes\tfabric\teth0",
            *(f"routes\t{ip}\teth0\t{address}" for ip in others.values()),
            f"tcp\tport\t4000{number}",
            *(f"tcp\t{name}\t0\ttrainyard" for name in others),
            f"munge\tcredential\tMUNGE:{host}:",
            "munge\tself\tSuccess (0)",
            *(f"munge\t{name}\tSuccess (0)" for name in others if HEAD in {host, name}),
            "nfs\twrite\t0\t",
            *(f"nfs\t{name}\t{name}" for name in addresses),
            CHRONY,
            f"clock\tnow\t1795246299.70{number}",
            "shm\t495000\t990000",
            RAN,
            "software\tpython\t3.13.5",
            f"software\ttorch\t{'absent' if host == HEAD else '2.6.0'}",
            f"software\tnccl\t{'absent' if host == HEAD else '2.28.9'}",
            "interfaces\tNCCL_SOCKET_IFNAME\t=eth0",
            "interfaces\tGLOO_SOCKET_IFNAME\teth0",
            f"interfaces\tdevice\teth0\t{address}",
            "interfaces\tdevice\tdocker0\t172.17.0.1",
            "settings\tfabric\tNCCL_IB_DISABLE\t1",
            "settings\tfile\t/etc/nccl.conf\tNCCL_IB_DISABLE\t1",
            "software\tslurm\tslurm-wlm 24.11.5",
        ]
        if host == HEAD:
            lines[host] += [f"queue\t{name}\tidle\tnone" for name in others]
            lines[host] += [f"memlock\t{name}\tunlimited" for name in others]
        else:
            lines[host] += [*REAL_GPUS, "nccl\tnetwork\tIBext_v8", "nccl\tjob\tallreduce-1"]
            facts = {"wanted": "docker", "docker": "active", "member": "yes", "toolkit": "yes"}
            lines[host] += [f"containers\t{key}\t{value}" for key, value in facts.items()]
            lines[host] += [f"mounts\texpected\t4.2\t{HEAD}"]
            lines[host] += [f"mounts\t{path}\tnfs4\t{NFS}" for path in ("/home", "/shared")]
    return lines


FAULTS: dict[str, list[tuple[str, ...]]] = {
    "status": [
        (FIRST, f"json\t{READY}", f"json\t{RUNNING}", "running, stage 70-slurm"),
        (FIRST, f"boot_id\t{BOOT}", f"boot_id\t{BOOT[::-1]}", "not started since the last boot"),
        (HEAD, f"json\t{READY}", "", "not started since the last boot"),
    ],
    "services": [
        (FIRST, "slurmd\tactive", "slurmd\tfailed", "slurmd is failed"),
        (HEAD, "slurmctld\tactive", "slurmctld\tactivating", "slurmctld is activating"),
    ],
    "names": [
        (SECOND, f"{SECOND}\t10.77.2.2", f"{SECOND}\t127.0.1.1", "resolves to 127.0.1.1"),
        (HEAD, f"{FIRST}\t10.77.2.1", "", f"{FIRST} resolves to no address"),
    ],
    "routes": [
        (FIRST, "10.77.2.2\teth0\t10.77.2.1", "10.77.2.2\tdocker0\t172.17.0.1", "uses docker0"),
        (FIRST, "10.77.0.4\teth0\t10.77.2.1", "", "has no route"),
        (FIRST, "fabric\teth0", "fabric\teth1", "expected eth1"),
    ],
    "tcp": [
        (FIRST, f"{SECOND}\t0\ttrainyard", f"{SECOND}\t124\tno answer within 8 s", f"of {SECOND}: no"),
        (SECOND, f"{HEAD}\t0\ttrainyard", "", "no port was reported"),
    ],
    "munge": [
        (HEAD, f"{FIRST}\tSuccess (0)", f"{FIRST}\tunmunge: Error: Invalid credential", "Invalid", FIRST),
        (SECOND, f"{HEAD}\tSuccess (0)", f"{HEAD}\tExpired credential (15)", "Expired"),
        (FIRST, "self\tSuccess (0)", "self\tmunge: Error: Failed to access", "munge does not work"),
    ],
    "nfs": [
        (SECOND, "write\t0\t", "write\t1\tbash: line 1: /shared/x: Permission denied", "cannot write"),
        (FIRST, f"{SECOND}\t{SECOND}", f"{SECOND}\t", f"cannot read a file that {SECOND} wrote"),
    ],
    "mounts": [
        (FIRST, f"/shared\tnfs4\t{NFS}", "", "/shared is not mounted"),
        (SECOND, f"/home\tnfs4\t{NFS}", "/home\tnfs4\trw,soft,vers=3", "rw,soft,vers=3"),
        (SECOND, f"/home\tnfs4\t{NFS}", "/home\text4\trw", "/home is not mounted"),
    ],
    "clock": [
        (FIRST, "chrony\t0.000012\tNormal", "chrony\t\t", "not synchronized"),
        (FIRST, "chrony\t0.000012\tNormal", "synchronised\tno", "not synchronized"),
        (FIRST, "chrony\t0.000012\tNormal", "chrony\t0.0\tNot synchronised", "not synchronized"),
        (SECOND, "now\t1795246299.702", "now\t1795246699.702", "head's clock by +400 s"),
    ],
    "nccl": [(FIRST, "network\tIBext_v8", "network\tSocket", "NCCL used the network 'Socket'")],
    "shm": [(FIRST, "495000\t990000", "65536\t990000", "is 64 MiB, but the host has 966 MiB")],
    "health": [
        (SECOND, "ran", "", "the health checks did not run"),
        (SECOND, "ran", "gpu-count\tfatal\t1 of 2 GPUs work\tcause\tfix of {host}", "did not run"),
    ],
    "software": [
        (HEAD, "slurm\tslurm-wlm 24.11.5", "slurm\tslurm-wlm 22.05.8", "is slurm-wlm 22.05.8"),
        (SECOND, "torch\t2.6.0", "torch\tabsent", "torch is absent; other hosts have 2"),
    ],
    "interfaces": [
        (FIRST, "NCCL_SOCKET_IFNAME\t=eth0", "NCCL_SOCKET_IFNAME\teth", "NCCL_SOCKET_IFNAME is 'eth', not '=eth0'"),
        (FIRST, "GLOO_SOCKET_IFNAME\teth0", "GLOO_SOCKET_IFNAME\tdocker0", "is 'docker0', not 'eth0'"),
        (SECOND, "NCCL_SOCKET_IFNAME\t=eth0", "device\tveth12\t10.0.3.1", "not '=eth0'; other interfaces: veth12"),
        (SECOND, "device\teth0\t10.77.2.2", "device\teth0\t10.0.2.15", "no interface has the private address"),
    ],
    "settings": [
        (FIRST, "file\t/etc/nccl.conf\tNCCL_IB_DISABLE\t1", "file\t/etc/nccl.conf\tNCCL_IB_DISABLE\t0",
         "/etc/nccl.conf sets NCCL_IB_DISABLE=0, but the cluster sets NCCL_IB_DISABLE=1"),
    ],
    "driver": [
        (FIRST, "direct\tnvidia-peermem", "", "RDMA cards cannot access GPU memory"),
        (SECOND, "version\t580.159", "version\t570.1", "driver is 570.1; other hosts have 580.159"),
    ],
    "topology": [(SECOND, "GPU0\tX NV18", "GPU0\tX SYS", "'GPU0 X SYS', not 'GPU0 X NV18'")],
    "infiniband": [
        (SECOND, "mlx5_ib0/1\t4: ACTIVE\t400 Gb/sec (4X NDR)", "mlx5_ib0/1\t4: ACTIVE\t200 Gb/sec (2X NDR)",
         "rates are 200 Gb/sec"),
    ],
    "containers": [
        (FIRST, "docker\tactive", "docker\tfailed", "docker is failed"),
        (SECOND, "docker\tactive", "", "docker is absent"),
        (FIRST, "member\tyes", "", "the job user is not in group docker"),
        (FIRST, "wanted\tdocker", "wanted\tenroot", "enroot is not installed"),
    ],
    "memlock": [(HEAD, f"{FIRST}\tunlimited", f"{FIRST}\t8192", "8192 KiB", FIRST)],
    "queue": [
        (HEAD, f"{FIRST}\tidle\tnone", f"{FIRST}\tdown*\tNot responding", "state is down*", FIRST),
        (HEAD, f"{SECOND}\tidle\tnone", f"{SECOND}\tdrained\tKill task failed", "state is drained", SECOND),
        (HEAD, f"{SECOND}\tidle\tnone", "", "unknown to Slurm", SECOND),
    ],
}  # fmt: skip
"""Cases by check: the host, a line that it prints if it is healthy, the line that replaces it if it is faulty, a part
of the problem, and the host with the problem if it is another one. Lines are without the name of the check."""
