#!/usr/bin/env bash
# Job neox-2.7b: 2 nodes, 16 ranks, started by gpt-neox's deepy.py.
# Needs: Python 3.10 (Ubuntu 22.04) with git on the head; pdsh, a CUDA compiler (nvcc), g++, make and python3-dev on every node; the token files /shared/data/neox.bin and /shared/data/neox.idx
# Unverified: never run, because training needs real GPUs and nvcc; for the same reason, the recipe has no smoke size. Without a GPU, gpt-neox accepted this configuration and read the synthetic data
# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.
#SBATCH --job-name=neox-2.7b
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=3-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#SBATCH --output=job.log
set -euo pipefail

readonly workdir=venv/src/gpt-neox
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE)
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=8 leads=1 over_ssh=1
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
  write_deepspeed_env
  unset RANK LOCAL_RANK NODE_RANK
  export DLTS_HOSTFILE="$HOSTFILE"
  [[ -s $HOSTFILE ]] || { say "host file $HOSTFILE is missing or empty"; exit 2; }
  exec python3 -u ./deepy.py train.py configs/2-7B.yml "$RUN_DIR"/local.yml
}

# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.
(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR
source "$RUN_DIR/yard.sh"
