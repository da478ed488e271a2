#!/usr/bin/env bash
# For jobs in docker's containers: what must hold on the node before one starts.
# shellcheck disable=SC2154,SC2317,SC2329
# --- docker on this node ----------------------------------------------------------------------------------------------

# docker_ready yes|no: fails unless the job user can start containers here, with GPUs if the argument is yes.
docker_ready() {
  local trouble
  if ! command -v docker >/dev/null; then
    say "docker is not installed on node $NODE_RANK; set \`containers: docker\` in the stack file and run \`pulumi up\`"
    exit 1
  fi
  if ! trouble=$(docker version --format '{{.Server.Version}}' 2>&1 >/dev/null); then
    say "$(id -un) cannot use docker on node $NODE_RANK: ${trouble//$'\n'/ }"
    say "set \`containers: docker\` in the stack file and run \`pulumi up\`; \`yard doctor\` shows what is missing"
    exit 1
  fi
  # dockerd looks for this program to give a container its GPUs.
  if [[ $1 == yes ]] && ! command -v nvidia-container-runtime-hook >/dev/null; then
    say "node $NODE_RANK has docker without the NVIDIA container toolkit; install nvidia-container-toolkit there"
    exit 1
  fi
}

# lend_keys FOLDER: the job user's key pair in a folder of this node. dockerd runs as root, which the server of the
# home folder maps to nobody, so a container cannot mount ~/.ssh itself.
lend_keys() {
  rm -rf -- "$1"
  # Fails if another user has made it.
  if ! mkdir -m 0700 -- "$1" || ! install -m 0600 -- "$HOME/.ssh/id_ed25519" "$HOME/.ssh/id_ed25519.pub" "$1/"; then
    say "node $NODE_RANK cannot copy the key pair $HOME/.ssh/id_ed25519 to $1"
    exit 1
  fi
  # The ranks of this job are the only clients of the container's sshd.
  install -m 0600 -- "$1/id_ed25519.pub" "$1/authorized_keys"
}
