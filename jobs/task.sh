#!/usr/bin/env bash
# The part of every job's script that is always the same, whoever schedules it; render.py puts the job's own part, which
# sets the variables that are used here and not assigned, in the place of these lines.
# shellcheck disable=SC2153,SC2154,SC2317,SC2329
# --- from here on the same for every job ------------------------------------------------------------------------------

say() { printf 'yard: %s\n' "$*"; }

# What happened to this job, a line each, for `yard logs` and for counting failures across restarts.
note() { printf '%(%s)T %s\n' -1 "$*" >>"$RUN_DIR/events"; }

# One task: all that a rank needs, then the work, in a container where the job has one.
task() {
  find_place
  local addresses
  # shellcheck disable=SC2153
  IFS=, read -ra addresses <<<"$NODE_IPS"
  export NODE_IP=${addresses[NODE_RANK]}
  # Rank 0 speaks in the job's log, live; every other one in its own.
  ((RANK == 0)) || exec >>"$RUN_DIR/rank-$RANK.log" 2>&1
  enter
}

# Where the ranks run, be that the host or a container.
begin() {
  set -a
  # Written on the node, which knows the interface that carries its private address.
  # shellcheck source=/dev/null
  source /etc/trainyard/fabric.env
  set +a
  # torch's store without libuv is in every build of torch; the one with it is not.
  export USE_LIBUV=0
  if ! cd "$RUN_DIR" || ! cd "${workdir:-.}"; then
    say "rank $RANK finds no folder ${workdir:-$RUN_DIR}; is it on a shared path?"
    exit 1
  fi
  if [[ -r $RUN_DIR/setup.sh ]]; then
    # One task at a time on each node: what one installs, the next one finds.
    exec 9>"/tmp/yard-setup-$UID-$JOB_NAME"
    flock 9
    # shellcheck source=/dev/null
    source "$RUN_DIR/setup.sh"
    exec 9>&-
  fi
  work
}
