#!/usr/bin/env bash
# Job neox-2.7b: 2 nodes, 16 ranks, started by gpt-neox's deepy.py.
# Needs: a checkout of github.com/EleutherAI/gpt-neox at ea7aefd in /shared/gpt-neox with `python prepare_data.py -d ./data` done, its requirements in /shared/venv-neox (Python 3.10, torch 2.x, DeepSpeed as requirements.txt pins it), and pdsh on every node
# Unproved: has never run: gpt-neox, its DeepSpeed and its data come from git and the web, and it needs real GPUs, so there is no smoke size
# Written by yard. It runs in its own folder, and `sbatch job.sbatch` there runs it again.
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

readonly workdir=/shared/gpt-neox
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=8 leads=1 strays=1
readonly retries=3 chain=1 checkpoint_dir=checkpoints
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)
readonly own_env=(BUSBW_FLOOR NCCL_IBEXT_DISABLE NCCL_IB_DISABLE)

enter() { begin; }

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  write_deepspeed_env
  unset RANK LOCAL_RANK NODE_RANK
  export DLTS_HOSTFILE="$HOSTFILE"
  [[ -s $HOSTFILE ]] || { say "there is no host file $HOSTFILE"; exit 2; }
  exec python3 -u ./deepy.py train.py configs/2-7B.yml "$RUN_DIR"/local.yml
}

