#!/usr/bin/env bash
# Job mpirun: 4 nodes, 32 ranks, started by mpirun.
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
  local passed_on=() name
  for name in $(names_for_ranks); do passed_on+=(-x "$name"); done
  # shellcheck disable=SC2016
  exec "$(type -P mpirun || echo mpirun)" -np "$WORLD_SIZE" --hostfile "$MPI_HOSTFILE" \
    --map-by "ppr:$TASKS_PER_NODE:node" --bind-to none \
    --mca btl_tcp_if_include "$GLOO_SOCKET_IFNAME" --mca oob_tcp_if_include "$GLOO_SOCKET_IFNAME" \
    "${passed_on[@]}" \
    bash --norc -c 'RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK exec "$@"' \
    rank python3 -u "$RUN_DIR/"train.py '--x y'
}

source "$RUN_DIR/yard.sh"
