#!/usr/bin/env bash
# Job torchrun-elastic: 4 nodes, 32 ranks, started by elastic torchrun.
# Written by yard. Code shared by all jobs is in yard.sh. runner/ starts the tasks.
set -euo pipefail

readonly workdir=/shared/code
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE OMP_NUM_THREADS)
readonly container_runtime=docker
readonly container_image=nvcr.io/nvidia/pytorch:26.01-py3 container_ssh_port=0
readonly container_gpus=yes
readonly container_options=(
  --mount type=bind,source=/shared,target=/shared
  --mount type=bind,source=/etc/trainyard,target=/etc/trainyard,readonly
  --mount type=bind,source=/data,target=/data,readonly
  --mount type=bind,source=/etc/passwd,target=/etc/passwd,readonly
  --mount type=bind,source=/etc/group,target=/etc/group,readonly
)

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export OMP_NUM_THREADS=6
  # Ignore the warning before the time limit, unless the program handles it.
  trap '' USR2
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  PET_RDZV_ID=$(<"$RUN_DIR/run-id")-$RESTART_COUNT
  export PET_RDZV_ID
  start_torchrun \
    --nnodes=1:"$NNODES" --nproc-per-node="$TASKS_PER_NODE" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
    --rdzv-conf="is_host=$((NODE_RANK == 0))" --local-addr="$NODE_IP" \
    "$RUN_DIR/"train.py '--x y'
}

source "$RUN_DIR/yard.sh"
