#!/usr/bin/env bash
# Job torchrun: 4 nodes, 32 ranks, started by torchrun.
# Written by yard. It runs in its own folder; without a scheduler, runner/ starts its tasks.
set -euo pipefail

readonly workdir=/shared/code

enter() { begin; }

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export OMP_NUM_THREADS=6
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  start_torchrun \
    --nnodes="$NNODES" --nproc-per-node="$TASKS_PER_NODE" --node-rank="$NODE_RANK" \
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
    "$RUN_DIR/"train.py '--x y'
}

