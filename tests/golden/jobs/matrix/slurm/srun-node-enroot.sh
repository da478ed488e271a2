#!/usr/bin/env bash
# Job srun-node: 4 nodes, 32 ranks, started by srun, once a node.
# Written by yard. It runs in its own folder, and `sbatch job.sbatch` there runs it again.
#SBATCH --job-name=srun-node
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
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=8 leads=0 strays=0
readonly retries=0 chain=1 checkpoint_dir=''
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)

enter() {
  local image=/var/tmp/yard-nvcr.io-nvidia-pytorch-26.01-py3.sqsh
  # One task of a node fetches the image, the others wait for it.
  exec 8>"/tmp/yard-image-$UID"
  flock 8
  [[ -s $image ]] || enroot import --output "$image" 'docker://nvcr.io#nvidia/pytorch:26.01-py3'
  exec 8>&-
  [[ ! -d /dev/infiniband ]] || export MELLANOX_VISIBLE_DEVICES=all
  local name names=()
  for name in JOB_NAME RUN_DIR CHECKPOINT_DIR RESTART_COUNT NNODES NODE_IPS NODE_IP NODE_RANK GPUS_PER_NODE TASKS_PER_NODE MASTER_ADDR MASTER_PORT HOSTFILE MPI_HOSTFILE RANK LOCAL_RANK WORLD_SIZE MELLANOX_VISIBLE_DEVICES; do
    [[ -z ${!name+set} ]] || names+=(--env "$name=${!name}")
  done
  exec enroot start --rw "${names[@]}" \
    --mount /shared:/shared:none:x-create=auto,rbind \
    --mount /etc/trainyard:/etc/trainyard:none:x-create=auto,rbind,ro \
    --mount /data:/data:none:x-create=auto,rbind,ro \
    "$image" bash "$RUN_DIR/job.sbatch" begin
}

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export OMP_NUM_THREADS=6
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  exec python3 -u "$RUN_DIR/"train.py '--x y'
}

