#!/usr/bin/env bash
# The end of the script of a job under Slurm: what the batch shell does, and how a task finds its place.
# shellcheck disable=SC2154,SC2317,SC2329
# --- under Slurm ------------------------------------------------------------------------------------------------------

# The environment that every rank gets under every launcher.
provide() {
  export RUN_DIR=$SLURM_SUBMIT_DIR JOB_NAME=$SLURM_JOB_NAME RESTART_COUNT=${SLURM_RESTART_COUNT:-0}
  export NNODES=$SLURM_JOB_NUM_NODES GPUS_PER_NODE=$gpus_per_node TASKS_PER_NODE=$tasks_per_node
  local hosts addresses
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  # /etc/hosts holds the private addresses: collectives must meet there, not on whatever a host calls itself.
  # A line of the system's own that puts a name on loopback (127.0.1.1) would send every other node to itself.
  mapfile -t addresses < <(getent hosts "${hosts[@]}" | awk '$1 !~ /^127\./ { print $1 }')
  if ((${#addresses[@]} != NNODES)); then
    say "only ${#addresses[@]} of the names ${hosts[*]} resolve on ${SLURMD_NODENAME:-this node}; run \`yard doctor\`"
    exit 1
  fi
  # Below the ephemeral ports, and another one after a restart: the old one may still be held by a dying rank.
  export MASTER_ADDR=${addresses[0]} MASTER_PORT=$((20000 + (SLURM_JOB_ID * 10 + RESTART_COUNT) % 12000))
  local IFS=,
  export WORLD_SIZE=$((NNODES * tasks_per_node))
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

# The launcher's own batch shell has a place, too: the first.
find_place() {
  export RANK=$((SLURM_PROCID * ranks_per_task)) LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID
}

# What was written over NFS may wait on this node for half a minute; whoever follows the log wants it now.
keep_log_fresh() {
  trap '' USR2
  while sleep 2; do sync --data "$RUN_DIR/job.log" || true; done
}

# Ends what this job has running on this node out of Slurm's sight, as ranks that ssh started are: all that has its
# RUN_DIR in the environment it was started with.
sweep() {
  local file pid
  for file in /proc/[0-9]*/environ; do
    pid=${file#/proc/}
    if grep -qszFx "RUN_DIR=$1" "$file" 2>/dev/null; then kill -KILL "${pid%/environ}" 2>/dev/null || true; fi
  done
}

# The ranks that ssh started end with this, also where Slurm no longer grants a step.
sweep_nodes() {
  ((strays)) || return 0
  local host sweeps=()
  while read -r host _; do
    ssh -n -o BatchMode=yes -o ConnectTimeout=10 "$host" bash "$RUN_DIR/job.sbatch" sweep "$RUN_DIR" &
    sweeps+=($!)
  done <"$HOSTFILE"
  wait "${sweeps[@]}" || true
}

start_step() {
  if ((leads)); then exec bash "$RUN_DIR/job.sbatch" task; fi
  exec srun "${step_options[@]}" bash "$RUN_DIR/job.sbatch" task
}

# watch_heartbeats STEP: ends the step when a rank that has begun to beat in this start does so no more. What another
# node writes is seen here up to a minute late.
watch_heartbeats() {
  trap '' USR2
  local file age
  while sleep 5; do
    for file in "${CHECKPOINT_DIR:-$RUN_DIR}"/heartbeat-*; do
      [[ $file -nt $RUN_DIR/.started ]] || continue
      age=$(($(date +%s) - $(stat -c %Y "$file")))
      ((age > heartbeat + 60)) || continue
      say "rank ${file##*-} has not moved for $age s"
      kill "$1"
      return
    done
  done
}

# Work that ignores the warning would still run when Slurm ends the job at its time limit. Slurm then sends SIGTERM, as
# `scancel` does, and does not start the job again. So the step ends in time for a requeue.
end_before_limit() {
  trap '' USR2
  sleep $((warning_seconds - (warning_seconds < 120 ? warning_seconds / 2 : 60)))
  say 'the time limit is near and the work has not ended: its ranks are terminated'
  scancel --signal=TERM "$SLURM_JOB_ID" || true
  # A launcher in this shell is none of Slurm's steps.
  ((leads == 0)) || kill "$1" 2>/dev/null || true
}

# A trap runs only while the shell waits, so the step is a background job.
run_step() {
  local step again
  start_step &
  step=$!
  if ((heartbeat)); then watch_heartbeats "$step" & fi
  wait "$step" || rc=$?
  while ((woken)); do
    woken=0 again=0
    if ((out_of_time && limit_pid == 0)) && [[ -n $checkpoint_dir ]]; then
      end_before_limit "$step" &
      limit_pid=$!
    fi
    # A launcher in this shell is none of Slurm's steps, and hears of nothing otherwise.
    ((leads == 0)) || kill -"$((cancelled ? 15 : 12))" "$step" 2>/dev/null || true
    wait "$step" || again=$?
    # 127: it had ended before the signal came, and its code is known.
    ((again == 127)) || rc=$again
  done
}

# The node whose rank failed first, as srun says on the log since the step began; nothing when it does not say.
first_to_fail() {
  local line
  while read -r line; do
    [[ $line =~ ^srun:\ error:\ ([A-Za-z0-9.-]+):\ task ]] || continue
    printf '%s' "${BASH_REMATCH[1]}"
    return 0
  done < <(tail -c "+$((log_size + 1))" "$RUN_DIR/job.log")
}

# After two failures that began on one node, the job is kept off it, as long as its group has enough others. Slurm
# takes that of a job that waits, which it is from the moment that requeue has answered.
avoid_nodes() {
  local bad others
  bad=$(awk '$2 == "failed" && NF > 3 { if (++count[$4] == 2) print $4 }' "$RUN_DIR/events" | paste -sd,)
  [[ -n $bad ]] || return 0
  others=$(sinfo -h -N -p "$SLURM_JOB_PARTITION" -t idle,alloc,mix,comp -o %N | sort -u | grep -cvxFf <(tr , '\n' <<<"$bad") || true)
  if ((others < NNODES)); then
    say "$bad failed twice, but the group has no other node for this job"
    return 0
  fi
  if scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$bad"; then
    note "avoid $bad"
    say "$bad failed twice: this job goes elsewhere"
  fi
}

# requeue WHY: start this job again, under the same id. Returns only when that is not to be.
requeue() {
  # Slurm itself has decided when the job was cancelled, ran out of time or lost a node: asking would revive it.
  ((cancelled == 0)) || return 0
  [[ $(squeue -h -j "$SLURM_JOB_ID" -o %T) == RUNNING ]] || return 0
  note "requeue $1"
  say "$1: the job is started again"
  scontrol requeue "$SLURM_JOB_ID" || return 0
  avoid_nodes
  # Slurm ends this script now; whatever it would still do belongs to the next start. It asks once, maybe while
  # `scontrol` ran, and before it kills, it waits for a minute (KillWait).
  trap 'exit "$rc"' TERM
  ((cancelled)) || {
    sleep 120 &
    wait $!
  }
  exit "$rc"
}

# Failures of this job so far, over all its starts.
failures() {
  local count=0 event
  while read -r _ event _; do
    case $event in
      failed) count=$((count + 1)) ;;
      resume) count=0 ;;
    esac
  done <"$RUN_DIR/events"
  printf '%d' "$count"
}

judge() {
  if ((out_of_time)) && [[ -n $checkpoint_dir ]]; then
    if ((chain > 1)); then
      say 'time limit: the next job of the chain goes on'
    elif [[ -n $(find "$CHECKPOINT_DIR" -type f -newer "$RUN_DIR/.started" ! -name 'heartbeat-*' ! -name 'metrics*' -print -quit) ]]; then
      requeue 'time limit, checkpoint written'
    else
      say 'no checkpoint since the last start: not started again at the time limit'
    fi
  elif ((rc == 0 && cancelled == 0)); then
    # The rest of a chain has nothing left to do.
    touch "$RUN_DIR/finished"
  elif ((cancelled == 0)); then
    note "failed $rc $(first_to_fail)"
    say "failed with exit code $rc; srun names the rank above, which speaks in rank-N.log (rank 0: here)"
    (($(failures) > retries)) || requeue "failure $(failures) of at most $retries"
  fi
}

main() {
  rc=0 woken=0 out_of_time=0 cancelled=0 limit_pid=0
  provide
  if ((chain > 1)) && [[ -e $RUN_DIR/finished ]]; then
    say 'the work was finished by an earlier job of the chain'
    exit 0
  fi
  log_size=$(stat -c %s "$RUN_DIR/job.log")
  sweep_nodes
  touch "$RUN_DIR/.started"
  note "start $RESTART_COUNT $SLURM_JOB_NODELIST"
  say "job $SLURM_JOB_ID, start $RESTART_COUNT, on $SLURM_JOB_NODELIST"
  trap 'woken=1 cancelled=1' TERM
  trap 'woken=1 out_of_time=1; scancel --signal=USR2 "$SLURM_JOB_ID" || true' USR2
  keep_log_fresh &
  run_step
  sweep_nodes
  judge
  kill %keep_log_fresh %watch_heartbeats %end_before_limit 2>/dev/null || true
  # First the words, then the word that there will be no more.
  sync --data "$RUN_DIR/job.log"
  note "end $rc"
  exit "$rc"
}

case ${1:-main} in
  main | task | begin) "${1:-main}" ;;
  sweep) sweep "$2" ;;
esac
