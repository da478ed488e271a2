# shellcheck shell=bash
# Messages, timing and background steps for tools/setup.sh. Sourced, never run.

state=$root/.trainyard
cache=${TRAINYARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/trainyard}
logs=$state/logs
began=$SECONDS
declare -A step_pid=() step_title=()

say() { printf '[set-up %4ds] %s\n' "$((SECONDS - began))" "$*"; }

die() {
  say "$*" >&2
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# start ID TITLE FUNCTION [ARG...]: runs the step in the background, in a process group of its own.
start() {
  local id=$1 title=$2
  shift 2
  step_title[$id]=$title
  say "$title: started"
  set -m
  ("$@") >"$logs/setup-$id.log" 2>&1 </dev/null 9>&- &
  step_pid[$id]=$!
  set +m
}

# await ID...: returns when these steps have ended, with a line each; a failed step ends the set-up.
await() {
  local id
  for id in "$@"; do
    [[ -n ${step_pid[$id]:-} ]] || continue
    until_ended "$id"
    if ! wait "${step_pid[$id]}"; then
      unset "step_pid[$id]"
      step_failed "$id"
    fi
    unset "step_pid[$id]"
    say "${step_title[$id]}: done"
  done
}

# Every 20 s, what still runs and the last thing it said, so that a long build does not look like a hang.
until_ended() {
  local pid=${step_pid[$1]} waited=0
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    waited=$((waited + 1))
    ((waited % 100)) || say_running
  done
}

say_running() {
  local id
  for id in "${!step_pid[@]}"; do
    if kill -0 "${step_pid[$id]}" 2>/dev/null; then
      say "${step_title[$id]%% (*}: working. $(tail -c 2000 "$logs/setup-$id.log" | tr '\r' '\n' | grep . | tail -n 1 | cut -c1-90)"
    fi
  done
}

step_failed() {
  local log=$logs/setup-$1.log
  say "${step_title[$1]}: FAILED. The end of $log:" >&2
  tail -n 25 "$log" | sed 's/^/    /' >&2
  if grep -qiE 'could not resolve|temporary failure|connection (refused|timed out)|network is unreachable|no such host|unable to fetch|TLS handshake timeout|Max retries' "$log"; then
    say "This looks like the network: a package server did not answer. Check the connection, or the proxy settings of apt, pip or go, and run it again; finished steps are kept." >&2
  fi
  exit 1
}

# Ends every step still running, with all it started.
stop_steps() {
  local pid
  for pid in "${step_pid[@]}"; do
    kill -TERM -- "-$pid" 2>/dev/null || true
  done
  for pid in "${step_pid[@]}"; do
    wait "$pid" 2>/dev/null || true
  done
  step_pid=()
}

# version_at_least HAVE WANT: compares dotted versions.
version_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }
