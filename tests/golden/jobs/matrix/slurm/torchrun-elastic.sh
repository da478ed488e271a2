#!/usr/bin/env bash
# Job torchrun-elastic: 4 nodes, 32 ranks, started by elastic torchrun.
# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.
#SBATCH --job-name=torchrun-elastic
#SBATCH --partition=gpu
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#SBATCH --output=job.log
set -euo pipefail

readonly workdir=/shared/code
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE OMP_NUM_THREADS)
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=8 leads=0 over_ssh=0
readonly retries=0 chain=1 checkpoint_dir=''
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--no-kill --kill-on-bad-exit=0)
readonly container_runtime=''

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export OMP_NUM_THREADS=6
  # Ignore the warning before the time limit, unless the program handles it.
  trap '' USR2
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  PET_RDZV_ID=$(<"$RUN_DIR/run-id")-$RESTART_COUNT
  export PET_RDZV_ID
  start_torchrun \
    --nnodes=1:"$NNODES" --nproc-per-node="$TASKS_PER_NODE" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
    --rdzv-conf="is_host=$((NODE_RANK == 0))" --local-addr="$NODE_IP" \
    "$RUN_DIR/"train.py '--x y'
}

# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.
(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR
source "$RUN_DIR/yard.sh"
