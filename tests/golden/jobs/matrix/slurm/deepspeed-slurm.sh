#!/usr/bin/env bash
# Job deepspeed-slurm: 4 nodes, 32 ranks, started by deepspeed over srun.
# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.
#SBATCH --job-name=deepspeed-slurm
#SBATCH --partition=gpu
#SBATCH --nodes=4
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

readonly workdir=/shared/code
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE OMP_NUM_THREADS)
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
  export OMP_NUM_THREADS=6
  # Ignore the warning before the time limit, unless the program handles it.
  trap '' USR2
  unset RANK LOCAL_RANK NODE_RANK
  exec deepspeed --hostfile "$HOSTFILE" --launcher slurm \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$RUN_DIR/"train.py '--x y'
}

# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.
(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR
source "$RUN_DIR/yard.sh"
