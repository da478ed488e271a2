#!/usr/bin/env bash
# Job deepspeed-openmpi: 4 nodes, 32 ranks, started by deepspeed over Open MPI.
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
  load_mpirun
  case $(python3 -c 'from importlib.metadata import version; print(version("deepspeed"))') in
    0.16.* | 0.17.* | 0.18.*)
      say 'DeepSpeed 0.16 to 0.18 cannot start with Open MPI; use 0.19 or newer, or launcher deepspeed-no-ssh'
      exit 2
      ;;
  esac
  unset RANK LOCAL_RANK NODE_RANK
  exec deepspeed --hostfile "$HOSTFILE" --launcher openmpi \
    --launcher_args "--mca btl_tcp_if_include $GLOO_SOCKET_IFNAME" \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$RUN_DIR/"train.py '--x y'
}

source "$RUN_DIR/yard.sh"
