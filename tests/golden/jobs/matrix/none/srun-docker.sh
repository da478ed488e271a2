#!/usr/bin/env bash
# Job srun: 4 nodes, 32 ranks, started by srun.
# Written by yard. It runs in its own folder; without a scheduler, runner/ starts its tasks.
set -euo pipefail

readonly workdir=/shared/code

container_name() { printf "yard-%s-%d-%d" "${RUN_DIR##*/}" "$NODE_RANK" "$LOCAL_RANK"; }
leave() {
  docker rm --force "$(container_name)" >/dev/null 2>&1 || true
}
contain() {
  docker_ready yes
  local name names=()
  for name in JOB_NAME RUN_DIR CHECKPOINT_DIR RESTART_COUNT NNODES NODE_IPS NODE_IP NODE_RANK GPUS_PER_NODE TASKS_PER_NODE MASTER_ADDR MASTER_PORT HOSTFILE MPI_HOSTFILE RANK LOCAL_RANK WORLD_SIZE; do
    [[ -z ${!name+set} ]] || names+=(--env "$name=${!name}")
  done
  [[ ! -d /dev/infiniband ]] || names+=(--device /dev/infiniband)
  exec docker run --rm --name "$(container_name)" "${names[@]}" \
    --network host --ipc host --ulimit memlock=-1 --ulimit stack=67108864 --cap-add SYS_PTRACE \
    --security-opt no-new-privileges \
    --user "$(id -u):$(id -g)" --env HOME=/tmp \
    --gpus all \
    --mount type=bind,source=/shared,target=/shared \
    --mount type=bind,source=/etc/trainyard,target=/etc/trainyard,readonly \
    --mount type=bind,source=/data,target=/data,readonly \
    --mount type=bind,source=/etc/passwd,target=/etc/passwd,readonly \
    --mount type=bind,source=/etc/group,target=/etc/group,readonly \
    nvcr.io/nvidia/pytorch:26.01-py3 bash "$RUN_DIR/job.sh" "$1"
}
enter() { contain begin; }

work() {
  export NCCL_IB_DISABLE=1
  export NCCL_IBEXT_DISABLE=1
  export BUSBW_FLOOR=300
  export OMP_NUM_THREADS=6
  # The warning before the time limit is for work that handles it; other work goes on.
  trap '' USR2
  exec python3 -u "$RUN_DIR/"train.py '--x y'
}

