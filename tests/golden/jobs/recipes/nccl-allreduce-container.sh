#!/usr/bin/env bash
# Job nccl-allreduce-container: 2 nodes, 16 ranks, started by srun.
# Needs: Slurm with PMIx, enroot and pyxis
# Unverified: never run; the recipe has no smoke size, because it needs real GPUs, pyxis from GitHub and an NGC image
# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.
#SBATCH --job-name=nccl-allreduce-container
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=00:30:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR2@300
#SBATCH --output=job.log
set -euo pipefail

readonly workdir=''
readonly own_env=(BUSBW_FLOOR NCCL_DEBUG NCCL_IBEXT_DISABLE NCCL_IB_DISABLE)
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=1 leads=0 over_ssh=0
readonly retries=0 chain=1 checkpoint_dir=''
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1 --mpi=pmix --container-image='nvcr.io#nvidia/pytorch:26.01-py3' --container-mounts=/shared:/shared,/etc/trainyard:/etc/trainyard:ro,/opt:/opt-host:ro --no-container-mount-home --container-writable --container-env=JOB_NAME,RUN_DIR,CHECKPOINT_DIR,RESTART_COUNT,NNODES,NODE_IPS,NODE_IP,NODE_RANK,GPUS_PER_NODE,TASKS_PER_NODE,MASTER_ADDR,MASTER_PORT,HOSTFILE,MPI_HOSTFILE,RANK,LOCAL_RANK,WORLD_SIZE,MELLANOX_VISIBLE_DEVICES)
readonly container_runtime=pyxis

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export NCCL_DEBUG=WARN
  exec bash --norc -euo pipefail -c 'trap "" USR2; source "$0"' "$RUN_DIR/run.sh"
}

# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.
(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR
source "$RUN_DIR/yard.sh"
