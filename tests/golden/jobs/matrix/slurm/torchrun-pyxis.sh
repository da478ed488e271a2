#!/usr/bin/env bash
# Job torchrun: 4 nodes, 32 ranks, started by torchrun.
# Written by yard. It runs in its own folder, and `sbatch job.sbatch` there runs it again.
#SBATCH --job-name=torchrun
#SBATCH --partition=gpu
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
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
[[ ! -d /dev/infiniband ]] || export MELLANOX_VISIBLE_DEVICES=all
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=8 leads=0 strays=0
readonly retries=0 chain=1 checkpoint_dir=''
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1 --container-image='nvcr.io#nvidia/pytorch:26.01-py3' --container-mounts=/shared:/shared,/etc/trainyard:/etc/trainyard:ro,/data:/data:ro --no-container-mount-home --container-env=JOB_NAME,RUN_DIR,CHECKPOINT_DIR,RESTART_COUNT,NNODES,NODE_IPS,NODE_IP,NODE_RANK,GPUS_PER_NODE,TASKS_PER_NODE,MASTER_ADDR,MASTER_PORT,HOSTFILE,MPI_HOSTFILE,RANK,LOCAL_RANK,WORLD_SIZE,MELLANOX_VISIBLE_DEVICES)

enter() { begin; }

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export OMP_NUM_THREADS=6
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  start_torchrun \
    --nnodes="$NNODES" --nproc-per-node="$TASKS_PER_NODE" --node-rank="$NODE_RANK" \
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \
    "$RUN_DIR/"train.py '--x y'
}

