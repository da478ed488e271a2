"""Probe output from healthy hosts, and the replacement lines that a faulty host prints for each check."""

from __future__ import annotations

import json

HEAD, FIRST, SECOND = "yard-head", "yard-gpu-0", "yard-gpu-1"
BOOT = "8b169027-b633-4019-9fb9-af6189d6cf7d"
READY = json.dumps({"node": "x", "boot_id": BOOT, "state": "ready", "stage": ""})
RUNNING = json.dumps({"node": "x", "boot_id": BOOT, "state": "running", "stage": "70-slurm"})
NFS = "rw,noatime,vers=4.2,rsize=131072,wsize=131072,namlen=255,hard,proto=tcp,nconnect=4,timeo=600,retrans=2"
DOCKER, MEMBER = "containers\tdocker\tactive", "containers\tmember\tyes"
CHRONY = "clock\tchrony\t0.000012\tNormal"

Lines = dict[str, list[str]]
PORT = "infiniband\tmlx5_ib0/1\t4: ACTIVE\t400 Gb/sec (4X NDR)\tInfiniBand"
NETWORK = "nccl\tnetwork\tIBext_v8"
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
"""Additional lines from a worker with an RDMA card and real GPUs connected through NVSwitch."""


def healthy() -> Lines:
    """Return the probe output from three healthy hosts, recorded on real hosts except for the systemd and NFS lines."""
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
            lines[host] += [*REAL_GPUS, NETWORK, "nccl\tjob\tallreduce-1"]
            lines[host] += ["containers\twanted\tdocker", DOCKER, MEMBER, "containers\ttoolkit\tyes"]
            lines[host] += [f"mounts\texpected\t4.2\t{HEAD}"]
            lines[host] += [f"mounts\t{path}\tnfs4\t{NFS}" for path in ("/home", "/shared")]
    return lines


Fault = tuple[str, str, str, str, str]
FAULTS: dict[str, list[Fault]] = {
    # probe: (host whose output changes, line from a healthy host, replacement line, reported host, expected text)
    "status": [
        (FIRST, f"status\tjson\t{READY}", f"status\tjson\t{RUNNING}", FIRST, "running, stage 70-slurm"),
        (FIRST, f"status\tboot_id\t{BOOT}", f"status\tboot_id\t{BOOT[::-1]}", FIRST, "not started since the last boot"),
        (HEAD, f"status\tjson\t{READY}", "", HEAD, "not started since the last boot"),
    ],
    "services": [
        (FIRST, "services\tslurmd\tactive", "services\tslurmd\tfailed", FIRST, "slurmd is failed"),
        (HEAD, "services\tslurmctld\tactive", "services\tslurmctld\tactivating", HEAD, "slurmctld is activating"),
    ],
    "names": [
        (SECOND, f"names\t{SECOND}\t10.77.2.2", f"names\t{SECOND}\t127.0.1.1", SECOND, "resolves to 127.0.1.1"),
        (HEAD, f"names\t{FIRST}\t10.77.2.1", "", HEAD, f"{FIRST} resolves to no address"),
    ],
    "routes": [
        (FIRST, "routes\t10.77.2.2\teth0\t10.77.2.1", "routes\t10.77.2.2\tdocker0\t172.17.0.1", FIRST, "uses docker0"),
        (FIRST, "routes\t10.77.0.4\teth0\t10.77.2.1", "", FIRST, "has no route"),
        (FIRST, "routes\tfabric\teth0", "routes\tfabric\teth1", FIRST, "expected eth1"),
    ],
    "tcp": [
        (FIRST, f"tcp\t{SECOND}\t0\ttrainyard", f"tcp\t{SECOND}\t124\tno answer within 8 s", FIRST, f"of {SECOND}: no"),
        (SECOND, f"tcp\t{HEAD}\t0\ttrainyard", "", SECOND, "no port was reported"),
    ],
    "munge": [
        (HEAD, f"munge\t{FIRST}\tSuccess (0)", f"munge\t{FIRST}\tunmunge: Error: Invalid credential", FIRST, "Invalid"),
        (SECOND, f"munge\t{HEAD}\tSuccess (0)", f"munge\t{HEAD}\tExpired credential (15)", SECOND, "Expired"),
        (
            FIRST,
            "munge\tself\tSuccess (0)",
            "munge\tself\tmunge: Error: Failed to access",
            FIRST,
            "munge does not work",
        ),
    ],
    "nfs": [
        (
            SECOND,
            "nfs\twrite\t0\t",
            "nfs\twrite\t1\tbash: line 1: /shared/x: Permission denied",
            SECOND,
            "cannot write",
        ),
        (FIRST, f"nfs\t{SECOND}\t{SECOND}", f"nfs\t{SECOND}\t", FIRST, f"cannot read a file that {SECOND} wrote"),
    ],
    "mounts": [
        (FIRST, f"mounts\t/shared\tnfs4\t{NFS}", "", FIRST, "/shared is not mounted"),
        (SECOND, f"mounts\t/home\tnfs4\t{NFS}", "mounts\t/home\tnfs4\trw,soft,vers=3", SECOND, "rw,soft,vers=3"),
        (SECOND, f"mounts\t/home\tnfs4\t{NFS}", "mounts\t/home\text4\trw", SECOND, "/home is not mounted"),
    ],
    "clock": [
        (FIRST, CHRONY, "clock\tchrony\t\t", FIRST, "not synchronized"),
        (FIRST, CHRONY, "clock\tsynchronised\tno", FIRST, "not synchronized"),
        (FIRST, CHRONY, "clock\tchrony\t0.0\tNot synchronised", FIRST, "not synchronized"),
        (SECOND, "clock\tnow\t1795246299.702", "clock\tnow\t1795246699.702", SECOND, "head's clock by +400 s"),
    ],
    "nccl": [(FIRST, NETWORK, "nccl\tnetwork\tSocket", FIRST, "NCCL used the network 'Socket'")],
    "shm": [(FIRST, "shm\t495000\t990000", "shm\t65536\t990000", FIRST, "is 64 MiB, but the host has 966 MiB")],
    "health": [
        (SECOND, RAN, "", SECOND, "the health checks did not run"),
        (SECOND, RAN, "health\tgpu-count\tfatal\t1 of 2 GPUs work\tcause\tfix of {host}", SECOND, "did not run"),
    ],
    "software": [
        (
            HEAD,
            "software\tslurm\tslurm-wlm 24.11.5",
            "software\tslurm\tslurm-wlm 22.05.8",
            HEAD,
            "is slurm-wlm 22.05.8",
        ),
        (
            SECOND,
            "software\ttorch\t2.6.0",
            "software\ttorch\tabsent",
            SECOND,
            "torch is absent; other hosts have 2",
        ),
    ],
    "interfaces": [
        (
            FIRST,
            "interfaces\tNCCL_SOCKET_IFNAME\t=eth0",
            "interfaces\tNCCL_SOCKET_IFNAME\teth",
            FIRST,
            "NCCL_SOCKET_IFNAME is 'eth', not '=eth0'",
        ),
        (
            FIRST,
            "interfaces\tGLOO_SOCKET_IFNAME\teth0",
            "interfaces\tGLOO_SOCKET_IFNAME\tdocker0",
            FIRST,
            "is 'docker0', not 'eth0'",
        ),
        (
            SECOND,
            "interfaces\tNCCL_SOCKET_IFNAME\t=eth0",
            "interfaces\tdevice\tveth12\t10.0.3.1",
            SECOND,
            "is '', not '=eth0'; other interfaces: veth12",
        ),
        (
            SECOND,
            "interfaces\tdevice\teth0\t10.77.2.2",
            "interfaces\tdevice\teth0\t10.0.2.15",
            SECOND,
            "no interface has the private address 10.77.2.2",
        ),
    ],
    "settings": [
        (
            FIRST,
            "settings\tfile\t/etc/nccl.conf\tNCCL_IB_DISABLE\t1",
            "settings\tfile\t/etc/nccl.conf\tNCCL_IB_DISABLE\t0",
            FIRST,
            "/etc/nccl.conf sets NCCL_IB_DISABLE=0, but the cluster sets NCCL_IB_DISABLE=1",
        ),
    ],
    "driver": [
        (FIRST, "driver\tdirect\tnvidia-peermem", "", FIRST, "RDMA cards cannot access GPU memory"),
        (
            SECOND,
            "driver\tversion\t580.159",
            "driver\tversion\t570.1",
            SECOND,
            "driver is 570.1; other hosts have 580.159",
        ),
    ],
    "topology": [
        (SECOND, ROW, "topology\tGPU0\tX SYS", SECOND, "'GPU0 X SYS', not 'GPU0 X NV18'"),
    ],
    "infiniband": [
        (
            SECOND,
            PORT,
            PORT.replace("400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)"),
            SECOND,
            "rates are 200 Gb/sec",
        ),
    ],
    "containers": [
        (FIRST, DOCKER, "containers\tdocker\tfailed", FIRST, "docker is failed"),
        (SECOND, DOCKER, "", SECOND, "docker is absent"),
        (FIRST, MEMBER, "", FIRST, "the job user is not in group docker"),
        (FIRST, "containers\twanted\tdocker", "containers\twanted\tenroot", FIRST, "enroot is not installed"),
    ],
    "memlock": [(HEAD, f"memlock\t{FIRST}\tunlimited", f"memlock\t{FIRST}\t8192", FIRST, "8192 KiB")],
    "queue": [
        (HEAD, f"queue\t{FIRST}\tidle\tnone", f"queue\t{FIRST}\tdown*\tNot responding", FIRST, "state is down*"),
        (
            HEAD,
            f"queue\t{SECOND}\tidle\tnone",
            f"queue\t{SECOND}\tdrained\tKill task failed",
            SECOND,
            "state is drained",
        ),
        (HEAD, f"queue\t{SECOND}\tidle\tnone", "", SECOND, "unknown to Slurm"),
    ],
}
