#!/usr/bin/env bash
# Job opt-175b: 16 nodes, 128 ranks, started by torchrun.
# Needs: torch 2.6 or newer
# Unproved: has never run; it needs 64 GPUs of 80 GB or more
# Written by yard. It runs in its own folder, and `sbatch job.sbatch` there runs it again.
#SBATCH --job-name=opt-175b
#SBATCH --partition=gpu
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=1-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#SBATCH --output=job.log
set -euo pipefail

readonly workdir=''
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=8 leads=0 strays=0
readonly retries=10 chain=1 checkpoint_dir=checkpoints
readonly heartbeat=1800 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)

enter() { begin; }

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  start_torchrun \
    --nnodes="$NNODES" --nproc-per-node="$TASKS_PER_NODE" --node-rank="$NODE_RANK" \
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
    "$RUN_DIR/"train.py --preset opt-175b --parallel fsdp2 --recompute --batch 128 --steps 50 --run-dir "$CHECKPOINT_DIR"
}

