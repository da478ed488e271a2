# shellcheck shell=bash
# Messages, timing and background steps for tools/setup.sh, which sources this file.

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

# start ID TITLE FUNCTION [ARG...]: runs the step in the background, in a separate process group.
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

# await ID...: waits until these steps have ended and prints a line for each. A failed step ends the set-up.
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

# until_ended ID: waits for a step. Prints the running steps and their last lines every 20 s.
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
    say "A package server did not respond. Fix: check the network connection and the proxy settings for apt, pip and go, then run it again. Finished steps are not repeated." >&2
  fi
  exit 1
}

# Ends all running steps and their child processes.
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

# version_at_least VERSION MINIMUM: compares dotted versions.
version_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }
