#!/usr/bin/env bash
# Job train-tiny: 2 nodes, 16 ranks, started by srun.
# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.
#SBATCH --job-name=train-tiny
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#SBATCH --output=job.log
set -euo pipefail

readonly workdir=''
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE)
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=1 leads=0 over_ssh=0
readonly retries=3 chain=1 checkpoint_dir=checkpoints
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)
readonly container_runtime=''

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  # Ignore the warning before the time limit, unless the program handles it.
  trap '' USR2
  exec python3 -u "$RUN_DIR/"train.py --preset tiny --steps 20 --save-every 5 --run-dir "$CHECKPOINT_DIR" --data synthetic --parallel ddp
}

# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.
(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR
source "$RUN_DIR/yard.sh"
