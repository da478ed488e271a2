#!/usr/bin/env bash
# Job opt-6.7b-zero3: 2 nodes, 2 ranks, started by deepspeed --no_ssh.
# Needs: the same versions of torch, deepspeed (0.16 or newer), transformers and accelerate on every node
# Unverified: never run on eight GPUs or with the published weights; the smoke size was never run on the virtual machines, because they have no DeepSpeed
# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.
#SBATCH --job-name=opt-6.7b-zero3
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
readonly retries=3 chain=1 checkpoint_dir=checkpoints
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)
readonly container_runtime=''

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=''
  # Ignore the warning before the time limit, unless the program handles it.
  trap '' USR2
  exec deepspeed --hostfile "$HOSTFILE" --no_ssh --node_rank "$NODE_RANK" \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$RUN_DIR/"opt_zero3.py --layers 2 --hidden 64 --heads 4 --seq 32 --batch 2 --accumulate 1 --steps 4 --checkpoints "$CHECKPOINT_DIR"
}

# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.
(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR
source "$RUN_DIR/yard.sh"
