# Sourced before every stage.
# What a stage may use: the node's parameters, and a few words that keep stages short.
set -euo pipefail
trap 'printf "%s\n" "$BASH_COMMAND" >/run/trainyard/failed-command' ERR
set -o errtrace
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C.UTF-8

# shellcheck source=/dev/null
source /etc/trainyard/node.env
# Read by the stages that source this file.
# shellcheck disable=SC2034
readonly handover=/var/lib/trainyard/handover

say() { printf '%s\n' "$*"; }

fail() {
  printf '%s\n' "$*" >/run/trainyard/failed-command
  printf 'error: %s\n' "$*" >&2
  trap - ERR
  exit 1
}

is_head() { [[ $TRAINYARD_ROLE == head ]]; }

# put_file PATH MODE OWNER:GROUP <content: writes only what differs; `changed` then counts it.
# One process when it writes and none when it does not: on an emulated machine every process is felt.
changed=0
put_file() {
  local path=$1 mode=$2 owner=$3 new
  IFS= read -r -d '' new || true
  [[ ! -e $path || $(<"$path") != "${new%$'\n'}" ]] || return 0
  printf '%s' "$new" | install -D -m "$mode" -o "${owner%:*}" -g "${owner#*:}" /dev/stdin "$path"
  changed=$((changed + 1))
}

# put_secret PATH OWNER:GROUP FROM: a file that may hold any byte, readable by its owner alone.
put_secret() {
  local path=$1 owner=$2 from=$3
  ! cmp -s "$from" "$path" || return 0
  install -D -m 0400 -o "${owner%:*}" -g "${owner#*:}" "$from" "$path"
  changed=$((changed + 1))
}

# Whole seconds since boot. Deadlines count on this: bash's own SECONDS jumps when chrony steps the clock.
uptime_seconds() {
  local up
  IFS=. read -r up _ </proc/uptime
  printf '%s' "$up"
}

# wait_for SECONDS WHAT COMMAND...: polls until the command succeeds; a deadline is an error that names WHAT.
wait_for() {
  local seconds=$1 what=$2 end
  shift 2
  end=$(($(uptime_seconds) + seconds))
  until "$@" >/dev/null 2>&1; do
    (($(uptime_seconds) < end)) || fail "waited $seconds s for $what"
    sleep 0.7
  done
}

# listens HOST PORT: somebody accepts connections there. A host that is off must not hold us for long.
listens() { timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; }

# as_trainer COMMAND...: as the job user, without a login session and its cost.
as_trainer() { setpriv --reuid=trainer --regid=trainer --init-groups -- env HOME=/home/trainer "$@"; }
