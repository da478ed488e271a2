#!/usr/bin/env bash
# Job opt-175b: 2 nodes, 2 ranks, started by srun.
# Needs: torch 2.6 or newer
# Unverified: never run at full size, which needs 64 GPUs with at least 80 GB each
# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.
#SBATCH --job-name=opt-175b
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#SBATCH --output=job.log
set -euo pipefail

readonly workdir=''
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE)
readonly gpus_per_node=2 tasks_per_node=1
readonly ranks_per_task=1 leads=0 over_ssh=0
readonly retries=10 chain=1 checkpoint_dir=checkpoints
readonly heartbeat=1800 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)
readonly container_runtime=''

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=''
  # Ignore the warning before the time limit, unless the program handles it.
  trap '' USR2
  exec python3 -u "$RUN_DIR/"train.py --preset tiny --parallel ddp --batch 4 --steps 4 --save-every 2 --run-dir "$CHECKPOINT_DIR"
}

# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.
(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR
source "$RUN_DIR/yard.sh"
