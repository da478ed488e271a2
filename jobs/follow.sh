#!/usr/bin/env bash
# follow.sh JOBS_DIR JOB RANK SKIP: prints a rank's log, but for its first SKIP lines, and goes on as it grows, over
# every restart, until the job has ended; then one last line: the character 0x1e and what Slurm says of the job. Ends early when its own stdin is closed.
# It runs on the head, in bash, and starts a process only now and then: the head may be an emulated machine.
set -uo pipefail
jobs=$1 job=$2 rank=$3 skip=$4
run=$jobs/.ids/$job
ended=0 open=0 partial='' asked=-100 looked=0

# The log of the task that holds the rank: one task may hold several.
log_of() {
  local file best=-1 number
  if ((rank > 0)); then
    for file in "$run"/rank-*.log; do
      number=${file##*/rank-}
      number=${number%.log}
      [[ $number =~ ^[0-9]+$ ]] && ((number <= rank && number > best)) && best=$number
    done
  fi
  if ((best > 0)); then log=$run/rank-$best.log; elif ((rank == 0)); then log=$run/job.log; else log=; fi
}

more() {
  local line
  if ((open == 0)); then
    log_of
    [[ -n $log && -r $log ]] || return 0
    exec 3<"$log"
    open=1
  fi
  while IFS= read -r -u 3 line; do
    if ((skip > 0)); then
      skip=$((skip - 1))
      continue
    fi
    printf '%s\n' "$line"
    partial=
  done
  ((skip == 0)) || return 0
  printf '%s' "$line"
  [[ -z $line ]] || partial=1
}

last_event() {
  local event last=
  [[ -r $run/events ]] || return 0
  while read -r _ event _; do last=$event; done <"$run/events"
  [[ $last == end ]] && ended=1 || ended=0
}

# A zombie has ended, although /proc still lists it (proc_pid_stat(5), field 3).
is_running() {
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  stat=${stat##*) }
  [[ $stat != [ZX]* ]]
}

# Without Slurm, the job's runner writes the job's state to state.json while the runner lives.
runner_state() {
  said=$(<"$run/state.json") now=GONE
  [[ $said =~ \"state\":\ \"([A-Z_]+)\" ]] && now=${BASH_REMATCH[1]}
  if [[ $said =~ \"pid\":\ ([0-9]+).*\"boot\":\ \"([0-9a-f-]+)\" ]]; then
    is_running "${BASH_REMATCH[1]}" && [[ ${BASH_REMATCH[2]} == "$(</proc/sys/kernel/random/boot_id)" ]] || now=GONE
  fi
}

state() {
  asked=$SECONDS
  if [[ -r $run/state.json ]]; then
    runner_state
    return
  fi
  said=$(scontrol -o show job "$job" 2>/dev/null || true)
  [[ $said =~ JobState=([A-Z_]+) ]] && now=${BASH_REMATCH[1]} || now=GONE
}

while :; do
  more
  last_event
  # Slurm is asked when the job says it has ended, and from time to time for one that could not say so.
  if ((ended || SECONDS - asked >= 10)); then
    state
    case $now in
      PENDING | CONFIGURING | RUNNING | SUSPENDED | REQUEUED | REQUEUE_HOLD | RESIZING | SPECIAL_EXIT) ;;
      COMPLETING) ((looked += ended)) ;;
      *) break ;;
    esac
    # A node that cannot be reached holds a job in COMPLETING for long; its own word is enough then.
    ((looked < 60)) || break
  fi
  code=0
  read -r -t 0.7 _ || code=$?
  ((code > 128 || code == 0)) || exit 0
done
more
[[ -z $partial ]] || printf '\n'
printf '\036%s\n' "${said:-}"
