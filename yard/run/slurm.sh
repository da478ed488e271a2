#!/usr/bin/env bash
# The last part of yard.sh on a cluster with Slurm, where the batch script starts the tasks and restarts the job.
# shellcheck disable=SC2034,SC2154,SC2317,SC2329
readonly job_script=job.sbatch

# Sets the environment variables that all ranks need under every launcher.
provide() {
  export RUN_DIR=$SLURM_SUBMIT_DIR JOB_NAME=$SLURM_JOB_NAME RESTART_COUNT=${SLURM_RESTART_COUNT:-0}
  export NNODES=$SLURM_JOB_NUM_NODES GPUS_PER_NODE=$gpus_per_node TASKS_PER_NODE=$tasks_per_node
  local hosts addresses host
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  # /etc/hosts contains the private addresses, which collectives must use. Loopback addresses (127.0.1.1) are skipped,
  # because other nodes cannot reach them.
  mapfile -t addresses < <(getent hosts "${hosts[@]}" | awk '$1 !~ /^127\./ { print $1 }')
  if ((${#addresses[@]} != NNODES)); then
    say "only ${#addresses[@]} of the names ${hosts[*]} resolve on ${SLURMD_NODENAME:-this node}; run \`yard doctor\`"
    exit 1
  fi
  # The port is below the ephemeral range. It changes with each start, because an old rank may still be using it.
  export MASTER_ADDR=${addresses[0]} MASTER_PORT=$((20000 + (SLURM_JOB_ID * 10 + RESTART_COUNT) % 12000))
  local IFS=,
  export WORLD_SIZE=$((NNODES * tasks_per_node))
  export NODE_IPS="${addresses[*]}" HOSTFILE=$RUN_DIR/hostfile MPI_HOSTFILE=$RUN_DIR/hostfile
  for host in "${hosts[@]}"; do printf '%s slots=%d\n' "$host" "$tasks_per_node"; done >"$HOSTFILE"
  if [[ -n $checkpoint_dir ]]; then
    CHECKPOINT_DIR=$RUN_DIR/$checkpoint_dir
    [[ $checkpoint_dir != /* ]] || CHECKPOINT_DIR=$checkpoint_dir
    export CHECKPOINT_DIR
    mkdir -p "$CHECKPOINT_DIR"
  fi
}

# Sets a task's rank. In the batch shell, Slurm's variables are those of the first task.
find_place() {
  export RANK=$((SLURM_PROCID * ranks_per_task)) LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID
}

# Sends the log to the NFS server every two seconds, because NFS may delay writes by half a minute.
keep_log_fresh() {
  trap '' USR2
  while sleep 2; do sync --data "$RUN_DIR/job.log" || true; done
}

# sweep RUN_DIR kills all processes on this node that were started with this RUN_DIR in their environment, because Slurm
# does not track ranks that are started over SSH.
sweep() {
  local file pid
  for file in /proc/[0-9]*/environ; do
    pid=${file#/proc/}
    if grep -qszFx "RUN_DIR=$1" "$file" 2>/dev/null; then kill -KILL "${pid%/environ}" 2>/dev/null || true; fi
  done
}

# sweep_nodes [LOST...] kills the ranks on all nodes except the lost ones, over SSH, because Slurm may refuse a second
# step.
sweep_nodes() {
  local host sweeps=()
  sweep "$RUN_DIR"
  while read -r host _; do
    [[ " $* $SLURMD_NODENAME " != *" $host "* ]] || continue
    # With RUN_DIR in its environment, this ssh would be killed too.
    env -u RUN_DIR ssh -n -o BatchMode=yes -o ConnectTimeout=10 "$host" bash "$RUN_DIR/yard.sh" sweep "$RUN_DIR" 2>&1 &
    sweeps+=($!)
  done <"$HOSTFILE"
  # Without arguments, `wait` would wait for all processes in the background.
  ((${#sweeps[@]} == 0)) || wait "${sweeps[@]}" || true
}

# Kills ranks that were started over SSH, which Slurm does not track.
sweep_untracked() { ((over_ssh == 0)) || sweep_nodes; }

# After the loss of a node, Slurm starts the job again when all of its ranks have ended. But a rank that is waiting for
# the lost node in a collective ignores SIGTERM, and Slurm would kill it only after KillWait (60 s). If this script runs
# for more than 10 s after SIGTERM, slurmd checks only every 10 s whether it has ended (pause_for_job_completion in
# Slurm's slurmd_common.c, read 2026-11-23; seen with Slurm 24.11.5).
sweep_after_loss() {
  mapfile -t lost < <(sinfo -h -N -n "$SLURM_JOB_NODELIST" -t down -o %N | sort -u)
  ((${#lost[@]})) || return 0
  say "nodes that are down: ${lost[*]}; the ranks on the other nodes are killed"
  sweep_nodes "${lost[@]}"
}

start_step() {
  [[ $container_runtime != pyxis ]] || use_rdma_devices
  if ((leads)); then exec bash "$RUN_DIR/$job_script" task; fi
  exec srun "${step_options[@]}" bash "$RUN_DIR/$job_script" task
}

# ask NODE SECONDS LINE runs a command line on a node of this job for at most this time.
ask() {
  local program=(ssh -n -o BatchMode=yes -o ConnectTimeout=5 "$1")
  [[ $1 != "$SLURMD_NODENAME" ]] || program=(bash -c)
  # With RUN_DIR in its environment, this ssh would be killed by `sweep`.
  env -u RUN_DIR timeout "$2" "${program[@]}" "$3"
}

# Ends the ranks on all nodes after they have printed their stacks, which `explain_hang` reads. The nodes wait for a common
# time, because srun ends all ranks when it learns of the first ended rank.
collect_stacks() {
  run_hang dump "$RUN_DIR" "RUN_DIR=$RUN_DIR"
  run_hang stacks "RUN_DIR=$RUN_DIR" $((EPOCHSECONDS + 4))
}

# run_hang ARGUMENT... runs hang.py on all nodes.
run_hang() {
  local host line asked=()
  printf -v line '%q ' python3 "$RUN_DIR/hang.py" "$@"
  while read -r host _; do
    ask "$host" 60 "$line" 2>&1 &
    asked+=($!)
  done <"$HOSTFILE"
  wait "${asked[@]}" || true
}

# Prints where the ranks of this start were, if they have printed their stacks or PyTorch has recorded their collectives.
explain_hang() { python3 "$RUN_DIR/hang.py" explain "$RUN_DIR" "$RESTART_COUNT" || true; }

# watch_heartbeats STEP ends the step if a heartbeat file from this start is too old, with a margin of a minute, because
# NFS may delay the modification time.
watch_heartbeats() {
  trap '' USR2
  local file age
  while sleep 5; do
    for file in "${CHECKPOINT_DIR:-$RUN_DIR}"/heartbeat-*; do
      [[ $file -nt $RUN_DIR/.started ]] || continue
      age=$(($(date +%s) - $(stat -c %Y "$file")))
      ((age > heartbeat + 60)) || continue
      end_hang "$1" "rank ${file##*-} has written no heartbeat for $age s"
      return
    done
  done
}

# watch_progress STEP ends the step if the job makes no progress for `stall_minutes`.
watch_progress() {
  trap '' USR2
  local line
  # With RUN_DIR in its environment, the program would be killed by `sweep`, and stopped like a rank.
  line=$(env -u RUN_DIR python3 "$RUN_DIR/stall.py" "$RUN_DIR" "${CHECKPOINT_DIR:-}" "$stall_minutes")
  [[ -z $line ]] || end_hang "$1" "$line"
}

# end_hang STEP TEXT ends a step whose ranks hang, unless this has already been done in this start.
end_hang() {
  [[ ! $RUN_DIR/.stalled -nt $RUN_DIR/.started ]] || return 0
  say "$2"
  touch "$RUN_DIR/.stalled"
  collect_stacks
  kill "$1" 2>/dev/null || true
}

# end_before_limit STEP ends the step shortly before the time limit if the program ignores the warning, because Slurm
# would cancel the job at the limit and not restart it.
end_before_limit() {
  trap '' USR2
  sleep $((warning_seconds - (warning_seconds < 120 ? warning_seconds / 2 : 60)))
  say 'the time limit is near and the program still runs; its ranks are terminated'
  scancel --signal=TERM "$SLURM_JOB_ID" || true
  # A launcher in the batch shell is not a Slurm step, so Slurm sends no signal to it.
  ((leads == 0)) || kill "$1" 2>/dev/null || true
}

# Runs the step in the background, because bash runs traps only between commands and during `wait`.
run_step() {
  local step again
  start_step &
  step=$!
  if ((heartbeat)); then watch_heartbeats "$step" & fi
  if ((${stall_minutes:-0})); then watch_progress "$step" & fi
  wait "$step" || rc=$?
  while ((woken)); do
    woken=0 again=0
    if ((out_of_time && limit_pid == 0)) && [[ -n $checkpoint_dir ]]; then
      end_before_limit "$step" &
      limit_pid=$!
    fi
    # Slurm sends no signal to a launcher in the batch shell.
    ((leads == 0)) || kill -"$((cancelled ? 15 : 12))" "$step" 2>/dev/null || true
    # Without the redirection, bash would print a message with this file's path when a step is killed.
    {
      ((cancelled == 0)) || sweep_after_loss
      wait "$step" || again=$?
    } 2>/dev/null
    # 127: the step had ended before the signal, and `rc` is its exit code.
    ((again == 127)) || rc=$again
  done
}

# Sets `failed_node`, `failed_task` and, if it is known, `rc` to the values of the task that failed first, if srun has
# reported one in this start. After a failure, srun ends the other tasks, which exit with other codes.
find_failure() {
  local line
  while [[ -z $failed_task ]] && read -r line; do
    [[ $line =~ ^srun:\ error:\ ([A-Za-z0-9.-]+):\ tasks?\ ([0-9]+)[^:]*:(.*) ]] || continue
    failed_node=${BASH_REMATCH[1]} failed_task=${BASH_REMATCH[2]}
    [[ ! ${BASH_REMATCH[3]} =~ exit\ code\ ([0-9]+) ]] || rc=${BASH_REMATCH[1]}
  done < <(tail -c "+$((log_size + 1))" "$RUN_DIR/job.log")
}

# Prints which task failed first. If its rank has a separate log, it also prints the log's Python errors except those of
# torchrun, or the log's last lines if there are no such errors.
report_failure() {
  local rank=$((${failed_task:-0} * ranks_per_task))
  if [[ -z $failed_task ]]; then
    say "failed with exit code $rc"
  elif ((rank)) && [[ -s $RUN_DIR/rank-$rank.log ]]; then
    say "rank $rank on $failed_node failed first, with exit code $rc; \`yard logs $SLURM_JOB_ID --rank $rank\` prints its log. From its end:"
    { grep -aE '^(\[rank[0-9]+\]: )?[A-Za-z_.]*(Error|Exception)(:|$)' "$RUN_DIR/rank-$rank.log" | grep -v ^torch.distributed.elastic ||
      tail -n 4 "$RUN_DIR/rank-$rank.log"; } | tail -n 4 | sed 's/^/  /'
  else
    say "rank $rank on $failed_node failed first, with exit code $rc; its messages are above"
  fi
}

# Sets `faulty` to the job's nodes that have a fault. Records and prints each fault that is at most ten minutes old,
# because an older one is probably not the cause of the failure. The nodes are asked directly, because a node on which
# munged has stopped cannot report the fault to Slurm. The health service writes the file `verdict`.
find_faults() {
  local host age reason
  local -r file=/run/trainyard/health/verdict
  local -r read_file="[ ! -s $file ] || echo \$((\$(date +%s) - \$(stat -c %Y $file))) \"\$(cat $file)\""
  while read -r host age _ reason; do
    [[ -n $reason && $age =~ ^-?[0-9]+$ ]] || continue
    faulty+=("$host")
    ((age <= 600)) || continue
    note "fault $host $((EPOCHSECONDS - age)) $reason"
    say "$host has had a fault for $age s: $reason"
  done < <(
    while read -r host _; do
      echo "$host $(ask "$host" 10 "$read_file" 2>/dev/null)" &
    done <"$HOSTFILE"
    wait
  )
}

# Excludes nodes that have a fault or on which the job has failed twice, if the group has enough other nodes. Slurm
# accepts this change only for pending jobs, and a job is pending after `scontrol requeue`.
avoid_nodes() {
  local bad others
  bad=$({
    awk '$2 == "failed" && NF > 3 { if (++count[$4] == 2) print $4 }' "$RUN_DIR/events"
    ((${#faulty[@]} == 0)) || printf '%s\n' "${faulty[@]}"
  } | sort -u | paste -sd,)
  [[ -n $bad ]] || return 0
  # Idle spares are reserved, and only the loss of a node releases them.
  others=$(sinfo -h -N -p "$SLURM_JOB_PARTITION" -t idle,alloc,mix,comp -o '%N %T' | awk '$2 != "reserved" { print $1 }' |
    sort -u | grep -cvxFf <(tr , '\n' <<<"$bad") || true)
  if ((others < NNODES)); then
    say "$bad failed twice or has a fault, but the group has too few other nodes for this job"
    return 0
  fi
  if scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$bad"; then
    note "avoid $bad"
    say "$bad failed twice or has a fault; the job no longer uses it"
  fi
}

# Records for how many seconds this start has run, in a new file, because an incomplete one would lose the record.
record_time() {
  local -r name=used-$SLURM_JOB_ID-$RESTART_COUNT
  echo $((EPOCHSECONDS - began)) >"$RUN_DIR/.new-$name" && mv "$RUN_DIR/.new-$name" "$RUN_DIR/.$name" || true
}

# A start that loses its first node cannot record its end.
count_time() {
  trap '' USR2
  while sleep 5; do record_time; done
}

# Prints for how many seconds the job may still run with `max_usd`. The files count all starts since the last `yard
# resume`, and all jobs of a chain.
seconds_left() {
  local file left=$budget_seconds
  record_time
  for file in "$RUN_DIR"/.used-*; do left=$((left - $(<"$file"))); done
  printf '%d' "$left"
}

# Lowers the time limit to the time that `max_usd` still allows, because Slurm gives each start the full limit. Users may
# lower the limit of their running jobs (_update_job in Slurm's job_mgr.c at slurm-24-11-5-1, read 2026-11-27). Slurm
# counts the limit from the start of the job, without the time in which machines boot.
limit_cost() {
  local left
  began=${SLURM_JOB_START_TIME:-$EPOCHSECONDS}
  left=$(seconds_left)
  if ((left < 60)); then
    refuse_start "$left"
    end_unstarted
  fi
  # The limit of the first start is correct, except for the seconds until this script runs.
  ((left + 30 < limit_seconds)) || return 0
  say "max_usd: earlier starts and the boot of machines used $((budget_seconds - left)) s; the time limit is $((left / 60)) min"
  if ! scontrol update JobId="$SLURM_JOB_ID" TimeLimit=$((left / 60)); then
    say 'Slurm has not lowered the time limit, so the job could cost more than max_usd; it ends'
    end_unstarted
  fi
}

refuse_start() {
  say "max_usd: the job's starts may run for $budget_seconds s, and $1 s are left, so it does not restart. Fix: raise max_usd and submit the job again, or run \`yard resume $SLURM_JOB_ID\`, which counts from zero"
}

end_unstarted() {
  sync --data "$RUN_DIR/job.log"
  note 'end 1'
  exit 1
}

# requeue REASON restarts this job with the same number. It returns only if the job must not restart.
requeue() {
  # A job that is not RUNNING was cancelled, reached its time limit or lost a node, and must not be requeued.
  ((cancelled == 0)) || return 0
  [[ $(squeue -h -j "$SLURM_JOB_ID" -o %T) == RUNNING ]] || return 0
  if ((${budget_seconds:-0})); then
    local left
    left=$(seconds_left)
    # A start needs time for its work before the warning, which Slurm may send a minute early.
    if ((left < warning_seconds + 120)); then
      refuse_start "$left"
      # The work is not finished, even if the program has saved it and returned 0.
      ((rc)) || rc=1
      return 0
    fi
  fi
  note "requeue $1"
  say "$1: restarting the job"
  scontrol requeue "$SLURM_JOB_ID" || return 0
  avoid_nodes
  # Slurm now ends this script. It sends SIGTERM, possibly while `scontrol` is still running, and SIGKILL after a minute.
  trap 'exit "$rc"' TERM
  ((cancelled)) || {
    sleep 120 &
    wait $!
  }
  exit "$rc"
}

# Prints how often the job has failed since the last `yard resume`.
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

# Prints the name of a checkpoint file that was written in this start, if there is one.
new_checkpoint() {
  find "$CHECKPOINT_DIR" -type f -newer "$RUN_DIR/.started" ! -name 'heartbeat-*' ! -name 'metrics*' -print -quit
}

# Prints the reason for SIGUSR2, which Slurm sends before the time limit, and `yard roll` and the health service before
# a node leaves. Before Slurm 23.02, the job's end time is unknown.
occasion() {
  if ((${SLURM_JOB_END_TIME:-0} > EPOCHSECONDS + warning_seconds + 60)); then
    printf 'a node leaves'
  else
    printf 'time limit'
  fi
}

# Decides whether the job has finished or must restart.
judge() {
  if ((out_of_time)) && [[ -n $checkpoint_dir ]]; then
    if ((chain > 1)); then
      say 'time limit: the next job of the chain continues'
    elif [[ -n $(new_checkpoint) ]]; then
      requeue "$(occasion), checkpoint written"
    else
      say 'no checkpoint since the last start; the job does not restart at the time limit'
    fi
  elif ((rc == 0 && cancelled == 0)); then
    # If this file exists, later jobs in a chain exit immediately.
    touch "$RUN_DIR/finished"
  elif ((cancelled == 0)); then
    find_failure
    if [[ $RUN_DIR/.stalled -nt $RUN_DIR/.started ]]; then
      # The ranks were ended because of a hang, so the first one to end is not the cause.
      note "failed $rc"
    else
      note "failed $rc $failed_node"
      report_failure
    fi
    explain_hang
    find_faults
    (($(failures) > retries)) || requeue "failure $(failures) of at most $retries"
  fi
}

# Prints the job's goodput, if its program has recorded steps.
report_goodput() {
  [[ -n $checkpoint_dir && -s $CHECKPOINT_DIR/metrics.jsonl ]] || return 0
  python3 "$RUN_DIR/goodput.py" --line "$SLURM_JOB_ID=$RUN_DIR" | sed 's/^/yard: /' || true
}

# Without pyxis, srun rejects the container's options, so another start would not help.
require_pyxis() {
  if [[ $container_runtime == pyxis && $(srun --help) != *--container-image* ]]; then
    say "Slurm has no pyxis here; set \`containers: enroot\`, and use an image that contains enroot and pyxis"
    exit 1
  fi
}

main() {
  rc=0 woken=0 out_of_time=0 cancelled=0 limit_pid=0 lost=() faulty=() failed_node='' failed_task=''
  provide
  require_pyxis
  if ((chain > 1)) && [[ -e $RUN_DIR/finished ]]; then
    say 'an earlier job of the chain has completed'
    exit 0
  fi
  log_size=$(stat -c %s "$RUN_DIR/job.log")
  sweep_untracked
  touch "$RUN_DIR/.started"
  rm -rf "$RUN_DIR/hang" && mkdir "$RUN_DIR/hang"
  [[ -z $checkpoint_dir ]] || note "saves $CHECKPOINT_DIR"
  note "start $RESTART_COUNT $SLURM_JOB_NODELIST"
  say "job $SLURM_JOB_ID, start $RESTART_COUNT, on $SLURM_JOB_NODELIST"
  trap 'woken=1 cancelled=1' TERM
  trap 'woken=1 out_of_time=1; scancel --signal=USR2 "$SLURM_JOB_ID" || true' USR2
  if ((${budget_seconds:-0})); then
    limit_cost
    count_time &
  fi
  keep_log_fresh &
  run_step
  sweep_untracked
  judge
  # After the loss of a node, this script must end soon, so the next start reports the goodput.
  ((${#lost[@]})) || report_goodput
  kill %keep_log_fresh %count_time %watch_heartbeats %watch_progress %end_before_limit 2>/dev/null || true
  # `yard logs --follow` stops after the event `end`, so the log must be complete before this event.
  sync --data "$RUN_DIR/job.log"
  note "end $rc"
  exit "$rc"
}

case ${1:-main} in
  main | task | begin) "${1:-main}" ;;
  sweep) sweep "$2" ;;
esac
