"""How a task enters its container: the shell function `enter` of a job's script, and pyxis's options of srun. Pure.

A container sees the shared path and the node's facts under their own names, the files that the fabric's transport
needs, and the job's own mounts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from jobs.container import SSH_PORT, Container
from jobs.placement import Placement
from jobs.rules import PROVIDED

HANDED_ON = tuple(name for name in PROVIDED if name != "BUSBW_FLOOR")
"""What the host has set when a container starts; the rest is set inside."""

CARDS = ("[[ ! -d /dev/infiniband ]] || export MELLANOX_VISIBLE_DEVICES=all",)
"""Makes enroot's hook 99-mellanox.sh bind the RDMA devices; without it a container has none, and NCCL uses TCP.
NVIDIA/enroot conf/hooks/99-mellanox.sh; measured by edwardsp/azcluster at 798568d, CHANGELOG. Read 2026-11-22."""

_FACTS = "/etc/trainyard"


def mounts(container: Container, placement: Placement) -> tuple[str, ...]:
    """Return every mount, as HOST:CONTAINER or HOST:CONTAINER:ro."""
    shared = placement.shared_path
    of_transport = (_at_same_path(path) for path in placement.transport.mounts)
    return f"{shared}:{shared}", f"{_FACTS}:{_FACTS}:ro", *of_transport, *container.mounts


def _at_same_path(path: str) -> str:
    place = path.removesuffix(":ro")
    return f"{place}:{path}"


def _ends(mount: str) -> tuple[str, str, bool]:
    """Split a mount into its path on the host, its path in the container, and whether it is read-only."""
    source, target = mount.removesuffix(":ro").split(":")
    return source, target, mount.endswith(":ro")


def _docker_mount(mount: str) -> str:
    # Unlike --volume, --mount fails if the host has no such path; --volume makes a folder of root's there.
    source, target, read_only = _ends(mount)
    return f"--mount {shlex.quote(f'type=bind,source={source},target={target}')}{',readonly' if read_only else ''}"


def _enroot_mount(mount: str) -> str:
    # An entry of fstab with colons. With "ro" alone for its options it is no bind mount, and fails: NVIDIA/enroot,
    # bin/enroot-mount.c, mount_fstab and mount_generic; read 2026-11-22.
    source, target, read_only = _ends(mount)
    return f"--mount {shlex.quote(f'{source}:{target}:none:x-create=auto,rbind')}{',ro' if read_only else ''}"


def enroot_name(image: str) -> str:
    """Return an image as enroot and pyxis write it: '#' after the registry, which docker cannot tell from a path."""
    registry, slash, rest = image.partition("/")
    return f"{registry}#{rest}" if slash and re.search(r"[.:]", registry) and "#" not in registry else image


def pyxis_options(container: Container, placement: Placement) -> list[str]:
    """Return the options of the srun that starts the tasks; on sbatch they would not reach its steps."""
    # An image's own variables win over the caller's, but for those named here.
    return [
        f"--container-image={shlex.quote(enroot_name(container.image))}",
        f"--container-mounts={shlex.quote(','.join(mounts(container, placement)))}",
        "--no-container-mount-home",
        f"--container-env={','.join((*HANDED_ON, 'MELLANOX_VISIBLE_DEVICES'))}",
    ]


def enter_lines(container: Container | None, placement: Placement, script: str, *, inner_ssh: bool) -> list[str]:
    """Return the function that takes a task to where its work happens. `inner_ssh`: ranks come by ssh, inside."""
    if container is None or container.runtime == "pyxis":
        return ["enter() { begin; }"]
    if container.runtime == "enroot":
        return _enroot(container, placement, script)
    return _docker(container, placement, script, inner_ssh=inner_ssh)


def _enroot(container: Container, placement: Placement, script: str) -> list[str]:
    image = container.image
    kept = image if image.endswith(".sqsh") else f"/var/tmp/yard-{re.sub(r'[^A-Za-z0-9.-]+', '-', image)}.sqsh"  # noqa: S108
    fetch = [
        f"  local image={shlex.quote(kept)}",
        "  # One task of a node fetches the image, the others wait for it.",
        '  exec 8>"/tmp/yard-image-$UID"',
        "  flock 8",
        f'  [[ -s $image ]] || enroot import --output "$image" {shlex.quote("docker://" + enroot_name(image))}',
        "  exec 8>&-",
    ]
    if kept == image:
        fetch = [f"  local image={shlex.quote(image)}"]
    places = [_enroot_mount(mount) for mount in mounts(container, placement)]
    return [
        "enter() {",
        *fetch,
        *(f"  {line}" for line in CARDS),
        *_names((*HANDED_ON, "MELLANOX_VISIBLE_DEVICES")),
        '  exec enroot start --rw "${names[@]}" \\',
        *(f"    {place} \\" for place in places),
        f'    "$image" bash "$RUN_DIR/{script}" begin',
        "}",
    ]


def _names(names: Sequence[str]) -> list[str]:
    return [
        "  local name names=()",
        f"  for name in {' '.join(names)}; do",
        '    [[ -z ${!name+set} ]] || names+=(--env "$name=${!name}")',
        "  done",
    ]


def _docker(container: Container, placement: Placement, script: str, *, inner_ssh: bool) -> list[str]:
    places = [_docker_mount(mount) for mount in mounts(container, placement)]
    # Files on /shared belong to the job's user, and root is nobody there.
    places += [_docker_mount("/etc/passwd:/etc/passwd:ro"), _docker_mount("/etc/group:/etc/group:ro")]
    if inner_ssh:
        # A container has the keys while it runs; no image has any.
        places.append('--mount "type=bind,source=$(keys),target=$HOME/.ssh,readonly"')
    options = [
        # Docker gives 64 MB of shared memory otherwise, and its own limits, not the host's.
        "--network host --ipc host --ulimit memlock=-1 --ulimit stack=67108864 --cap-add SYS_PTRACE",
        "--security-opt no-new-privileges",
        '--user "$(id -u):$(id -g)" --env HOME=' + ('"$HOME"' if inner_ssh else "/tmp"),  # noqa: S108
        *(["--gpus all"] if placement.real_gpus else []),
        *places,
    ]
    leave = 'docker rm --force "$(container_name)" >/dev/null 2>&1 || true'
    lines = [
        'container_name() { printf "yard-%s-%d-%d" "${RUN_DIR##*/}" "$NODE_RANK" "$LOCAL_RANK"; }',
        *(['keys() { printf "/tmp/%s.ssh" "$(container_name)"; }'] if inner_ssh else []),
        "leave() {",
        f"  {leave}",
        *(['  rm -rf -- "$(keys)"'] if inner_ssh else []),
        "}",
        "contain() {",
        f"  docker_ready {'yes' if placement.real_gpus else 'no'}",
        *(['  lend_keys "$(keys)"'] if inner_ssh else []),
        *_names(HANDED_ON),
        "  [[ ! -d /dev/infiniband ]] || names+=(--device /dev/infiniband)",
        '  exec docker run --rm --name "$(container_name)" "${names[@]}" \\',
        *(f"    {option} \\" for option in options),
        f'    {shlex.quote(container.image)} bash "$RUN_DIR/{script}" "$1"',
        "}",
    ]
    return [*lines, *(_inner_ssh() if inner_ssh else ["enter() { contain begin; }"])]


def _inner_ssh() -> list[str]:
    return [
        "# The other nodes' containers wait for ssh; the first one's starts the ranks once all of them do.",
        "enter() { if ((NODE_RANK)); then contain listen; else contain lead; fi; }",
        "listen() {",
        "  local place",
        "  place=$(mktemp -d)",
        '  ssh-keygen -q -t ed25519 -N "" -f "$place/host"',
        f'  exec /usr/sbin/sshd -D -e -f /dev/null -p {SSH_PORT} -o ListenAddress="$NODE_IP" \\',
        '    -h "$place/host" -o PidFile=none -o StrictModes=no \\',
        '    -o UsePAM=no -o PasswordAuthentication=no -o AuthorizedKeysFile="$HOME/.ssh/authorized_keys"',
        "}",
        "lead() {",
        "  listen &",
        "  local address deadline=$((SECONDS + 300))",
        "  # shellcheck disable=SC2153",
        "  for address in ${NODE_IPS//,/ }; do",
        f'    until (: <"/dev/tcp/$address/{SSH_PORT}") 2>/dev/null; do',
        '      ((SECONDS < deadline)) || { say "no sshd in the container of $address after 300 s"; exit 1; }',
        "      sleep 1",
        "    done",
        "  done",
        '  export PDSH_SSH_ARGS_APPEND="-o StrictHostKeyChecking=accept-new"',
        '  PDSH_SSH_ARGS_APPEND+=" -o UserKnownHostsFile=$RUN_DIR/known_hosts"',
        "  begin",
        "}",
    ]
