#!/usr/bin/env bash
# The part of every job's script that is always the same; render.py puts the job's own part, which sets the variables
# that are used here and not assigned, in the place of these lines.
# shellcheck disable=SC2154
# --- from here on the same for every job ------------------------------------------------------------------------------

say() { printf 'yard: %s\n' "$*"; }

# What happened to this job, a line each, for `yard logs` and for counting failures across restarts.
note() { printf '%(%s)T %s\n' -1 "$*" >>"$RUN_DIR/events"; }

# The environment that every rank gets under every launcher.
provide() {
  export RUN_DIR=$SLURM_SUBMIT_DIR JOB_NAME=$SLURM_JOB_NAME RESTART_COUNT=${SLURM_RESTART_COUNT:-0}
  export NNODES=$SLURM_JOB_NUM_NODES GPUS_PER_NODE=$gpus_per_node TASKS_PER_NODE=$tasks_per_node
  local hosts addresses
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  # /etc/hosts holds the private addresses: collectives must meet there, not on whatever a host calls itself.
  mapfile -t addresses < <(getent hosts "${hosts[@]}")
  addresses=("${addresses[@]%%[[:space:]]*}")
  if ((${#addresses[@]} != NNODES)); then
    say "only ${#addresses[@]} of the names ${hosts[*]} resolve on ${SLURMD_NODENAME:-this node}; run \`yard doctor\`"
    exit 1
  fi
  # Below the ephemeral ports, and another one after a restart: the old one may still be held by a dying rank.
  export MASTER_ADDR=${addresses[0]} MASTER_PORT=$((20000 + (SLURM_JOB_ID * 10 + RESTART_COUNT) % 12000))
  local IFS=,
  export NODE_IPS="${addresses[*]}" HOSTFILE=$RUN_DIR/hostfile MPI_HOSTFILE=$RUN_DIR/hostfile
  local host
  for host in "${hosts[@]}"; do printf '%s slots=%d\n' "$host" "$tasks_per_node"; done >"$HOSTFILE"
  if [[ -n $checkpoint_dir ]]; then
    CHECKPOINT_DIR=$RUN_DIR/$checkpoint_dir
    [[ $checkpoint_dir != /* ]] || CHECKPOINT_DIR=$checkpoint_dir
    export CHECKPOINT_DIR
    mkdir -p "$CHECKPOINT_DIR"
  fi
}

# One task of the step: all that a rank needs, then the work.
rank() {
  set -a
  # Written on the node, which knows the interface that carries its private address.
  # shellcheck source=/dev/null
  source /etc/trainyard/fabric.env
  set +a
  # torch's store without libuv is in every build of torch; the one with it is not.
  export USE_LIBUV=0
  export RANK=$((SLURM_PROCID * ranks_per_task)) LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID
  export WORLD_SIZE=$((SLURM_NTASKS * ranks_per_task))
  # Rank 0 speaks in the job's log, live; every other one in its own.
  ((RANK == 0)) || exec >>"$RUN_DIR/rank-$RANK.log" 2>&1
  work
}

# What was written over NFS may wait on this node for half a minute; whoever follows the log wants it now.
keep_log_fresh() {
  trap '' USR2
  while sleep 2; do sync --data "$RUN_DIR/job.log" || true; done
}

# A trap runs only while the shell waits, so the step is a background job.
run_step() {
  local step again
  srun --kill-on-bad-exit=1 "${step_options[@]}" bash "$RUN_DIR/job.sbatch" rank &
  step=$!
  wait "$step" || rc=$?
  while ((woken)); do
    woken=0 again=0
    wait "$step" || again=$?
    # 127: it had ended before the signal came, and its code is known.
    ((again == 127)) || rc=$again
  done
}

# requeue WHY: start this job again, under the same id. Returns only when that is not to be.
requeue() {
  # Slurm itself has decided when the job was cancelled, ran out of time or lost a node: asking would revive it.
  ((cancelled == 0)) || return 0
  [[ $(squeue -h -j "$SLURM_JOB_ID" -o %T) == RUNNING ]] || return 0
  note "requeue $1"
  say "$1: the job is started again"
  scontrol requeue "$SLURM_JOB_ID" || return 0
  # Slurm ends this script now; whatever it would still do belongs to the next start.
  sleep 120
  exit "$rc"
}

# Failures of this job so far, over all its starts.
failures() {
  local count=0 event
  while read -r _ event _; do
    [[ $event != failed ]] || count=$((count + 1))
  done <"$RUN_DIR/events"
  printf '%d' "$count"
}

judge() {
  if ((out_of_time)) && [[ -n $checkpoint_dir ]]; then
    if [[ -n $(find "$CHECKPOINT_DIR" -newer "$RUN_DIR/.started" -print -quit) ]]; then
      requeue 'time limit, checkpoint written'
    else
      say 'no checkpoint since the last start: not started again at the time limit'
    fi
  elif ((rc != 0 && cancelled == 0)); then
    note "failed $rc"
    say "failed with exit code $rc; srun names the rank above, which speaks in rank-N.log (rank 0: here)"
    (($(failures) > retries)) || requeue "failure $(failures) of at most $retries"
  fi
}

main() {
  rc=0 woken=0 out_of_time=0 cancelled=0
  provide
  touch "$RUN_DIR/.started"
  note "start $RESTART_COUNT $SLURM_JOB_NODELIST"
  say "job $SLURM_JOB_ID, start $RESTART_COUNT, on $SLURM_JOB_NODELIST"
  trap 'woken=1 cancelled=1' TERM
  trap 'woken=1 out_of_time=1; scancel --signal=USR2 "$SLURM_JOB_ID" || true' USR2
  keep_log_fresh &
  run_step
  judge
  kill %keep_log_fresh 2>/dev/null || true
  # First the words, then the word that there will be no more.
  sync --data "$RUN_DIR/job.log"
  note "end $rc"
  exit "$rc"
}

if [[ ${1:-} == rank ]]; then
  rank
else
  main
fi
