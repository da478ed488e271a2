#!/usr/bin/env bash
# Job nccl-allreduce-sbatch: 2 nodes, 2 ranks, started by srun.
# Needs: torch
# Unproved: has never run with nccl-tests, which needs real GPUs; the smoke size is our own all-reduce by the same launcher
# Written by yard. It runs in its own folder, and `sbatch job.sbatch` there runs it again.
#SBATCH --job-name=nccl-allreduce-sbatch
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:30:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#SBATCH --output=job.log
set -euo pipefail

readonly workdir=''
readonly gpus_per_node=2 tasks_per_node=1
readonly ranks_per_task=1 leads=0 strays=0
readonly retries=0 chain=1 checkpoint_dir=''
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)

enter() { begin; }

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=''
  export NCCL_DEBUG=WARN
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  exec python3 -u "$RUN_DIR/"allreduce.py -b 8 -e 64K -f 8 --warmup 1 --iters 2
}

