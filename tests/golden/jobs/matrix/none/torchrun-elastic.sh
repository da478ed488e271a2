#!/usr/bin/env bash
# Job torchrun-elastic: 4 nodes, 32 ranks, started by elastic torchrun.
# Written by yard. Code shared by all jobs is in yard.sh. runner/ starts the tasks.
set -euo pipefail

readonly workdir=/shared/code
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE OMP_NUM_THREADS)
readonly container_runtime=''

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
