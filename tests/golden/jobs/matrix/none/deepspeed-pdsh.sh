#!/usr/bin/env bash
# Job deepspeed-pdsh: 4 nodes, 32 ranks, started by deepspeed over pdsh.
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
  write_deepspeed_env
  exec deepspeed --hostfile "$HOSTFILE" --launcher pdsh \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$RUN_DIR/"train.py '--x y'
}

source "$RUN_DIR/yard.sh"
