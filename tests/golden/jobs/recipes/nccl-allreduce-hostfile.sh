#!/usr/bin/env bash
# Job nccl-allreduce-hostfile: 2 nodes, 16 ranks, started by mpirun.
# Needs: Open MPI, on PATH or as the environment module mpi/hpcx (HPC-X, in the images for NDv4 and NDv5), and nccl-tests in /opt/nccl-tests, built with this MPI
# Unverified: never run on two hosts; the smoke size runs yard's all-reduce with the same launcher
# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.
#SBATCH --job-name=nccl-allreduce-hostfile
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:30:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#SBATCH --output=job.log
set -euo pipefail

readonly workdir=''
readonly own_env=(BUSBW_FLOOR NCCL_DEBUG NCCL_IBEXT_DISABLE NCCL_IB_DISABLE)
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=8 leads=1 over_ssh=0
readonly retries=0 chain=1 checkpoint_dir=''
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)
readonly container_runtime=''

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export NCCL_DEBUG=WARN
  load_mpirun
  local passed_on=() name
  for name in $(names_for_ranks); do passed_on+=(-x "$name"); done
  # shellcheck disable=SC2016
  exec "$(type -P mpirun || echo mpirun)" -np "$WORLD_SIZE" --hostfile "$MPI_HOSTFILE" \
    --map-by "ppr:$TASKS_PER_NODE:node" --bind-to none \
    --mca btl_tcp_if_include "$GLOO_SOCKET_IFNAME" --mca oob_tcp_if_include "$GLOO_SOCKET_IFNAME" \
    "${passed_on[@]}" \
    bash --norc -c 'RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK exec "$@"' \
    rank bash --norc -euo pipefail -c 'trap "" USR2; source "$0"' "$RUN_DIR/run.sh"
}

# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.
(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR
source "$RUN_DIR/yard.sh"
