#!/usr/bin/env bash
# Job deepspeed-openmpi: 4 nodes, 32 ranks, started by deepspeed over Open MPI.
# Written by yard. It runs in its own folder, and `sbatch job.sbatch` there runs it again.
#SBATCH --job-name=deepspeed-openmpi
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
readonly gpus_per_node=8 tasks_per_node=8
readonly ranks_per_task=8 leads=1 strays=0
readonly retries=0 chain=1 checkpoint_dir=''
readonly heartbeat=0 warning_seconds=300
readonly step_options=(--kill-on-bad-exit=1)

enter() { begin; }

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export OMP_NUM_THREADS=6
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  if ! command -v mpirun >/dev/null && [[ -e /usr/share/modules/init/bash ]]; then
    set +u
    # shellcheck source=/dev/null
    source /usr/share/modules/init/bash
    module load mpi/hpcx
    set -u
  fi
  case $(python3 -c 'from importlib.metadata import version; print(version("deepspeed"))') in
    0.16.* | 0.17.* | 0.18.*)
      say 'DeepSpeed 0.16 to 0.18 cannot start by Open MPI; use 0.19 or newer, or launcher deepspeed-no-ssh'
      exit 2
      ;;
  esac
  unset RANK LOCAL_RANK NODE_RANK
  exec deepspeed --hostfile "$HOSTFILE" --launcher openmpi \
    --launcher_args "--mca btl_tcp_if_include $GLOO_SOCKET_IFNAME" \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$RUN_DIR/"train.py '--x y'
}

