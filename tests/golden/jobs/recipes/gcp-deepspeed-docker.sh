#!/usr/bin/env bash
# Job gcp-deepspeed-docker: 2 nodes, 16 ranks, started by deepspeed over pdsh.
# Needs: a stack with `scheduler: none` and `containers: docker`, such as gcp-a2, and on every node an image with torch, deepspeed, transformers, accelerate, pdsh, openssh-server and openssh-client
# Unproved: has never run, and has no smoke size; the image has to be built, and it needs real GPUs
# Written by yard. It runs in its own folder; without a scheduler, runner/ starts its tasks.
set -euo pipefail

readonly workdir=''
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE)

container_name() { printf "yard-%s-%d-%d" "${RUN_DIR##*/}" "$NODE_RANK" "$LOCAL_RANK"; }
keys() { printf "/tmp/%s.ssh" "$(container_name)"; }
leave() {
  docker rm --force "$(container_name)" >/dev/null 2>&1 || true
  rm -rf -- "$(keys)"
}
contain() {
  docker_ready yes
  lend_keys "$(keys)"
  local name names=()
  for name in JOB_NAME RUN_DIR CHECKPOINT_DIR RESTART_COUNT NNODES NODE_IPS NODE_IP NODE_RANK GPUS_PER_NODE TASKS_PER_NODE MASTER_ADDR MASTER_PORT HOSTFILE MPI_HOSTFILE RANK LOCAL_RANK WORLD_SIZE; do
    [[ -z ${!name+set} ]] || names+=(--env "$name=${!name}")
  done
  [[ ! -d /dev/infiniband ]] || names+=(--device /dev/infiniband)
  exec docker run --rm --name "$(container_name)" "${names[@]}" \
    --network host --ipc host --ulimit memlock=-1 --ulimit stack=67108864 --cap-add SYS_PTRACE \
    --security-opt no-new-privileges \
    --user "$(id -u):$(id -g)" --env HOME="$HOME" \
    --gpus all \
    --mount type=bind,source=/shared,target=/shared \
    --mount type=bind,source=/etc/trainyard,target=/etc/trainyard,readonly \
    --mount type=bind,source=/etc/passwd,target=/etc/passwd,readonly \
    --mount type=bind,source=/etc/group,target=/etc/group,readonly \
    --mount "type=bind,source=$(keys),target=$HOME/.ssh,readonly" \
    deepspeed-ssh:latest bash "$RUN_DIR/job.sh" "$1"
}
# The other nodes' containers wait for ssh; the first one's starts the ranks once all of them do.
enter() { if ((NODE_RANK)); then contain listen; else contain lead; fi; }
listen() {
  local place
  place=$(mktemp -d)
  ssh-keygen -q -t ed25519 -N "" -f "$place/host"
  exec /usr/sbin/sshd -D -e -f /dev/null -p 2222 -o ListenAddress="$NODE_IP" \
    -h "$place/host" -o PidFile=none -o StrictModes=no \
    -o UsePAM=no -o PasswordAuthentication=no -o AuthorizedKeysFile="$HOME/.ssh/authorized_keys"
}
lead() {
  listen &
  local address deadline=$((SECONDS + 300))
  # shellcheck disable=SC2153
  for address in ${NODE_IPS//,/ }; do
    until (: <"/dev/tcp/$address/2222") 2>/dev/null; do
      ((SECONDS < deadline)) || { say "no sshd in the container of $address after 300 s"; exit 1; }
      sleep 1
    done
  done
  export PDSH_SSH_ARGS_APPEND="-o StrictHostKeyChecking=accept-new"
  PDSH_SSH_ARGS_APPEND+=" -o UserKnownHostsFile=$RUN_DIR/known_hosts"
  begin
}

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  write_deepspeed_env
  exec deepspeed --hostfile "$HOSTFILE" --launcher pdsh \
    --ssh_port 2222 \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$RUN_DIR/"opt_zero3.py --checkpoints "$CHECKPOINT_DIR"
}

