#!/usr/bin/env bash
# Job deepspeed-no-ssh: 4 nodes, 32 ranks, started by deepspeed --no_ssh.
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
  exec deepspeed --hostfile "$HOSTFILE" --no_ssh --node_rank "$NODE_RANK" \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$RUN_DIR/"train.py '--x y'
}

