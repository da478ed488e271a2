#!/usr/bin/env bash
# follow.sh JOBS_DIR JOB RANK SKIP prints a rank's log without its first SKIP lines, and follows it across all restarts
# until the job ends. The last line consists of the character 0x1e and the job's record from scontrol or state.json.
# Until the program prints something, lines that begin with the character 0x1f contain the job's state, the reason for
# it, and how many seconds the log has been silent. The script ends when its stdin is closed. It runs on the head, and
# starts few processes, because starting one is slow on emulated machines. The log is printed without these characters.
set -uo pipefail
jobs=$1 job=$2 rank=$3 skip=$4
run=$jobs/.ids/$job
ended=0 open=0 partial='' queried=-100 completing=0 header='' began=0 heard=0 noted=

# Each job in a Slurm array has its own number, but only the array's number has a link to the run folder.
find_array() {
  [[ ! -e $run ]] || return 0
  state && queried=-100
  [[ ! $record =~ ArrayJobId=([0-9]+) ]] || run=$jobs/.ids/${BASH_REMATCH[1]}
}

# Sets `header` to a line with the commit from which the job was submitted, if a commit is recorded.
read_commit() {
  local line
  ((rank == 0)) && { read -r line <"$run/snapshot.json"; } 2>/dev/null || return 0
  [[ $line =~ \"commit\":\ \"([0-9a-f]{12}) ]] || return 0
  header="yard: commit ${BASH_REMATCH[1]}"
  [[ $line != *'"modified": true'* ]] || header+=' with changes'
}

# Prints the header before the first line of the log.
introduce() {
  [[ -n $header ]] || return 0
  if ((skip > 0)); then skip=$((skip - 1)); else printf '%s\n' "$header"; fi
  header=
}

# Sets `log` to the log of the rank's task, which is named after the task's first rank. A user's Slurm script has one
# log, whose path is in a link in the run folder and in Slurm's record.
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
  ((rank == 0)) && [[ ! -e $log && ! -e $run/state.json ]] || return 0
  if [[ -L $run/.log-$job ]]; then
    log=$run/.log-$job
    return
  fi
  [[ -n ${record+set} ]] || { state && queried=-100; }
  [[ ! $record =~ StdOut=([^[:space:]]+) ]] || log=${BASH_REMATCH[1]}
}

more() {
  local line
  if ((open == 0)); then
    log_of
    [[ -n $log && -r $log ]] || return 0
    exec 3<"$log"
    open=1
  else
    # If an NFS client has cached the size of the log, it reads the size again when a program opens the log.
    { : <"$log"; } 2>/dev/null || true
  fi
  while IFS= read -r -u 3 line; do
    introduce
    # A skipped line shows, too, that the program has begun. After a restart, it begins again.
    case $line in
      'yard: job '*', start '*) began=0 ;;
      'yard: '*) ;;
      *) began=1 ;;
    esac
    if ((skip > 0)); then
      skip=$((skip - 1))
      continue
    fi
    printf '%s\n' "${line//[$'\036\037']/}"
    partial='' heard=$SECONDS
  done
  [[ -z $line ]] || introduce
  ((skip == 0)) || return 0
  printf '%s' "${line//[$'\036\037']/}"
  [[ -z $line ]] || partial=1 began=1
}

# Prints the state when it has changed, and every 20 s while the job is running but its program has printed nothing.
note() {
  local reason=None
  ((began == 0 && skip == 0 && ended == 0)) || return 0
  [[ ! $record =~ (Reason=|\"reason\":\ \")([A-Za-z_]+) ]] || reason=${BASH_REMATCH[2]}
  case $now in
    PENDING | CONFIGURING) [[ $noted != "$now $reason" ]] || return 0 ;;
    RUNNING) [[ $noted != RUNNING* ]] || ((SECONDS - ${noted#RUNNING } >= 20)) || return 0 ;;
    *) return 0 ;;
  esac
  printf '\037%s %s %d\n' "$now" "$reason" $((SECONDS - heard))
  noted="$now $reason"
  [[ $now != RUNNING ]] || noted="RUNNING $SECONDS"
}

last_event() {
  local event last=
  [[ -r $run/events ]] || return 0
  # A fault can be recorded after the event `end`.
  while read -r _ event _; do [[ $event == fault ]] || last=$event; done <"$run/events"
  [[ $last == end ]] && ended=1 || ended=0
}

# is_running PID: fails for zombies, which /proc still lists (proc_pid_stat(5), field 3).
is_running() {
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
  stat=${stat##*) }
  [[ $stat != [ZX]* ]]
}

# Without Slurm, the job's runner writes state.json. If the runner has died, the state is GONE.
runner_state() {
  record=$(<"$run/state.json") now=GONE
  [[ $record =~ \"state\":\ \"([A-Z_]+)\" ]] && now=${BASH_REMATCH[1]}
  if [[ $record =~ \"pid\":\ ([0-9]+).*\"boot\":\ \"([0-9a-f-]+)\" ]]; then
    is_running "${BASH_REMATCH[1]}" && [[ ${BASH_REMATCH[2]} == "$(</proc/sys/kernel/random/boot_id)" ]] || now=GONE
  fi
}

state() {
  queried=$SECONDS
  if [[ -r $run/state.json ]]; then
    runner_state
    return
  fi
  record=$(scontrol -o show job "$job" 2>/dev/null || true)
  [[ $record =~ JobState=([A-Z_]+) ]] && now=${BASH_REMATCH[1]} || now=GONE
}

find_array
read_commit
while :; do
  more
  last_event
  # The state is queried after the event `end`, and every ten seconds, because a job cannot record the event on a full
  # disk.
  if ((ended || SECONDS - queried >= 10)); then
    state
    case $now in
      PENDING | CONFIGURING | RUNNING | SUSPENDED | REQUEUED | REQUEUE_HOLD | RESIZING | SPECIAL_EXIT) ;;
      COMPLETING) ((completing += ended)) ;;
      *) break ;;
    esac
    # The job counts as ended a minute after `end`, because an unreachable node can keep it in COMPLETING for a long time.
    ((completing < 60)) || break
  fi
  code=0
  read -r -t 0.7 _ || code=$?
  ((code > 128 || code == 0)) || exit 0
  note
done
more
[[ -z $partial ]] || printf '\n'
printf '\036%s\n' "${record:-}"
