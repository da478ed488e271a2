#!/usr/bin/env bash
# Job gcp-deepspeed-docker: 2 nodes, 16 ranks, started by deepspeed over pdsh.
# Needs: a stack with `scheduler: none` and `containers: docker`, such as gcp-a2; on every node, an image that contains torch, deepspeed, transformers, accelerate, pdsh, openssh-server and openssh-client
# Unverified: never run; the recipe has no smoke size, because it needs real GPUs and an image that must be built first
# Written by yard. Code shared by all jobs is in yard.sh. runner/ starts the tasks.
set -euo pipefail

readonly workdir=''
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE)
readonly container_runtime=docker
readonly container_image=deepspeed-ssh:latest container_ssh_port=2222
readonly container_gpus=yes
readonly container_options=(
  --mount type=bind,source=/shared,target=/shared
  --mount type=bind,source=/etc/trainyard,target=/etc/trainyard,readonly
  --mount type=bind,source=/etc/passwd,target=/etc/passwd,readonly
  --mount type=bind,source=/etc/group,target=/etc/group,readonly
)

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  # Ignore the warning before the time limit, unless the program handles it.
  trap '' USR2
  write_deepspeed_env
  exec deepspeed --hostfile "$HOSTFILE" --launcher pdsh \
    --ssh_port 2222 \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$RUN_DIR/"opt_zero3.py --checkpoints "$CHECKPOINT_DIR"
}

source "$RUN_DIR/yard.sh"
