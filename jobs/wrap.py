"""How a task enters its container: the shell function `enter` of a job's script, and pyxis's options of srun. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from jobs.container import SSH_PORT, Container
from jobs.rules import PROVIDED

HANDED_ON = tuple(name for name in PROVIDED if name != "BUSBW_FLOOR")
"""What the host has set when a container starts; the rest is set inside."""

_FACTS = "/etc/trainyard"


def mounts(container: Container, shared_path: str) -> tuple[str, ...]:
    """Return all mounts: the shared path under its own name, the node's facts, and the job's own."""
    return f"{shared_path}:{shared_path}", f"{_FACTS}:{_FACTS}:ro", *container.mounts


def enroot_name(image: str) -> str:
    """Return an image as enroot and pyxis write it: '#' after the registry, which docker cannot tell from a path."""
    registry, slash, rest = image.partition("/")
    return f"{registry}#{rest}" if slash and re.search(r"[.:]", registry) and "#" not in registry else image


def pyxis_options(container: Container, shared_path: str) -> list[str]:
    """Return the options of the srun that starts the tasks; on sbatch they would not reach its steps."""
    # An image's own variables win over the caller's, but for those named here.
    return [
        f"--container-image={shlex.quote(enroot_name(container.image))}",
        f"--container-mounts={shlex.quote(','.join(mounts(container, shared_path)))}",
        "--no-container-mount-home",
        f"--container-env={','.join(HANDED_ON)}",
    ]


def enter_lines(
    container: Container | None, shared_path: str, script: str, *, gpus: bool, inner_ssh: bool
) -> list[str]:
    """Return the function that takes a task to where its work happens. `inner_ssh`: ranks come by ssh, inside."""
    if container is None or container.runtime == "pyxis":
        return ["enter() { begin; }"]
    if container.runtime == "enroot":
        return _enroot(container, shared_path, script)
    return _docker(container, shared_path, script, gpus=gpus, inner_ssh=inner_ssh)


def _enroot(container: Container, shared_path: str, script: str) -> list[str]:
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
    places = [f"--mount {shlex.quote(mount)}" for mount in mounts(container, shared_path)]
    return [
        "enter() {",
        *fetch,
        *_names(HANDED_ON),
        f'  exec enroot start --rw "${{names[@]}}" {" ".join(places)} "$image" \\',
        f'    bash "$RUN_DIR/{script}" begin',
        "}",
    ]


def _names(names: Sequence[str]) -> list[str]:
    return [
        "  local name names=()",
        f"  for name in {' '.join(names)}; do",
        '    [[ -z ${!name+set} ]] || names+=(--env "$name=${!name}")',
        "  done",
    ]


def _docker(container: Container, shared_path: str, script: str, *, gpus: bool, inner_ssh: bool) -> list[str]:
    places = [f"--volume {shlex.quote(mount)}" for mount in mounts(container, shared_path)]
    # Files on /shared belong to the job's user, and root is nobody there.
    places += ["--volume /etc/passwd:/etc/passwd:ro", "--volume /etc/group:/etc/group:ro"]
    if inner_ssh:
        # The keys are lent to the container while it runs; no image holds any.
        places.append('--volume "$HOME/.ssh:$HOME/.ssh:ro"')
    options = [
        # Docker gives 64 MB of shared memory otherwise, and its own limits, not the host's.
        "--network host --ipc host --ulimit memlock=-1 --ulimit stack=67108864 --cap-add SYS_PTRACE",
        '--user "$(id -u):$(id -g)" --env HOME=' + ('"$HOME"' if inner_ssh else "/tmp"),  # noqa: S108
        *(["--gpus all"] if gpus else []),
        *places,
    ]
    lines = [
        'container_name() { printf "yard-%s-%d-%d" "${RUN_DIR##*/}" "$NODE_RANK" "$LOCAL_RANK"; }',
        'leave() { docker rm --force "$(container_name)" >/dev/null 2>&1 || true; }',
        "contain() {",
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
