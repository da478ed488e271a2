# Bootstrap functions for stages that must not run while Slurm jobs are running on the node. The node is drained while
# such a stage is due, so Slurm starts no further jobs on it. A drain is ended only if it has the reason in
# reasons.sh, which the bundle contains (components/node/bundle.py).

readonly drain_mark=/var/lib/trainyard/drained
# shellcheck source=/dev/null
source "${BASH_SOURCE[0]%/*}/reasons.sh"
readonly poll_seconds=10 resume_seconds=60
idle='' jobs=''

node_state() { scontrol -o show node "$TRAINYARD_NODE" 2>/dev/null; }

# is_idle: succeeds if no job is running on the node. Later calls in the same pass return the same result.
is_idle() {
  if [[ -z $idle ]]; then
    idle=no
    ! is_free || idle=yes
  fi
  [[ $idle == yes ]]
}

# is_free: drains the node, and then succeeds if no job is running on it. Otherwise, sets `jobs` to the jobs' IDs, or to
# "" if slurmctld does not respond.
# If slurmd is not running, or if the stack file now has `scheduler: none`, Slurm starts no further jobs, and slurmctld
# may have stopped. The node is then not drained, and the function only looks for jobs' processes, which continue to run
# when slurmd stops. If there is such a process, `jobs` is "unknown".
is_free() {
  jobs=''
  if uses_slurm && systemctl is-active --quiet slurmd.service; then
    drain_node && read_jobs && [[ -z $jobs ]]
  elif pgrep -f '^slurmstepd: \[' >/dev/null; then
    jobs=unknown
    return 1
  fi
}

uses_slurm() { [[ $'\n'$(<"$kind/kind.env")$'\n' == *$'\nTRAINYARD_SCHEDULER=slurm\n'* ]]; }

# drain_node: fails if slurmctld does not respond. If an operator or a health check has already drained the node, the
# existing reason is kept.
drain_node() {
  local shown
  shown=$(node_state) || return 1
  [[ $shown =~ ' State='[^\ ]*DRAIN ]] || {
    : >"$drain_mark"
    scontrol update nodename="$TRAINYARD_NODE" state=drain reason="$drain_reason"
  }
}

# read_jobs: sets `jobs` to the IDs of the jobs on the node. Fails if slurmctld does not respond.
read_jobs() {
  jobs=$(squeue -h -w "$TRAINYARD_NODE" -t R,CF,CG,S -o %A 2>/dev/null) || return 1
  jobs=${jobs//$'\n'/, }
}

# wait_until_idle STAGE...: waits until no job is running on the node, or until a new bundle or hand-over has arrived.
wait_until_idle() {
  local reason last='' polled=-$poll_seconds now
  console "trainyard-status: $TRAINYARD_NODE waiting stage=$1: running jobs: $jobs"
  until has_news; do
    IFS=. read -r now _ </proc/uptime
    if ((now - polled >= poll_seconds)); then
      polled=$now
      ! is_free || return 0
      reason="stages $* need a node without jobs; running jobs: $jobs"
      [[ -n $jobs ]] || reason="stages $* need a node without jobs; Slurm does not answer"
      [[ $reason == "$last" ]] || status waiting "$1" 0 "$reason"
      last=$reason
    fi
    pause 0.5
  done
}

# resume_node: returns the node to service if it was drained for a stage.
resume_node() {
  local now end
  if ! uses_slurm; then
    rm -f "$drain_mark"
    return 0
  fi
  IFS=. read -r now _ </proc/uptime
  end=$((now + resume_seconds))
  until node_state >/dev/null; do
    IFS=. read -r now _ </proc/uptime
    # The next pass tries again.
    ((now < end)) || return 0
    pause 2
  done
  [[ $(node_state) != *" Reason=$drain_reason "* ]] || scontrol update nodename="$TRAINYARD_NODE" state=resume
  rm -f "$drain_mark"
}
