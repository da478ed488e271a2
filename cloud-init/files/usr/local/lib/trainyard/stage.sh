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
has_slurm() { [[ $TRAINYARD_SCHEDULER == slurm ]]; }

# A machine that existed before the cluster keeps a ledger of what it was like, and goes back to its owner so.
readonly ledger=/var/lib/trainyard/borrowed
is_borrowed() { [[ -d $ledger ]]; }
if is_borrowed; then
  # Every apt-get of a stage notes, under apt's lock, what it installs.
  export APT_CONFIG=$ledger/apt.conf
  # needrestart 3.5 in mode "a" restarts the owner's services; its apt hook ends early where this is set.
  export NEEDRESTART_SUSPEND=1
fi
# remember PATH...: before the first change to it. Nothing to do on a machine that the platform made.
remember() { ! is_borrowed || "$ledger/remember" "$@"; }

# put_file PATH MODE OWNER:GROUP <content: writes only what differs; `changed` then counts it.
# One process when it writes and none when it does not: on an emulated machine every process is felt.
changed=0
put_file() {
  local path=$1 mode=$2 owner=$3 new
  IFS= read -r -d '' new || true
  [[ ! -e $path || $(<"$path") != "${new%$'\n'}" ]] || return 0
  remember "$path"
  printf '%s' "$new" | install -D -m "$mode" -o "${owner%:*}" -g "${owner#*:}" /dev/stdin "$path"
  changed=$((changed + 1))
}

# put_secret PATH OWNER:GROUP FROM: a file that may hold any byte, readable by its owner alone.
put_secret() {
  local path=$1 owner=$2 from=$3
  ! cmp -s "$from" "$path" || return 0
  remember "$path"
  install -D -m 0400 -o "${owner%:*}" -g "${owner#*:}" "$from" "$path"
  changed=$((changed + 1))
}

# own_name: the line of /etc/hosts for a machine that the cluster calls by another name than it calls itself.
own_name() {
  [[ ${HOSTNAME%%.*} == "$TRAINYARD_NODE" ]] || echo "$TRAINYARD_PRIVATE_IP $HOSTNAME ${HOSTNAME%%.*}"
}

# put_block PATH <content: this cluster's lines in a file that others write too. The rest of it stays, and nobody ever
# reads it half-written.
put_block() {
  local path=$1 new=$1.trainyard-new
  ! is_borrowed || "$ledger/remember" --block "$path"
  {
    [[ ! -e $path ]] || sed -e '/^# trainyard$/,/^# end of trainyard$/d' -e '$a\' "$path"
    echo '# trainyard'
    cat
    echo '# end of trainyard'
  } >"$new"
  if cmp -s "$new" "$path"; then
    rm "$new"
    return 0
  fi
  chmod 0644 "$new"
  mv "$new" "$path"
  changed=$((changed + 1))
}

# Polling costs an emulated machine dearly, so nothing below starts a process just to wait or to look at a clock.
# pause SECONDS: sleep, by waiting for what never comes.
exec {never}<> <(:)
pause() { read -r -t "$1" -u "$never" _ || true; }

# wait_for SECONDS WHAT COMMAND...: polls until the command succeeds; a deadline is an error that names WHAT.
# It counts on uptime: bash's own SECONDS jumps when chrony steps the clock.
wait_for() {
  local seconds=$1 what=$2 now end
  shift 2
  IFS=. read -r now _ </proc/uptime
  end=$((now + seconds))
  until "$@" >/dev/null 2>&1; do
    IFS=. read -r now _ </proc/uptime
    ((now < end)) || fail "waited $seconds s for $what"
    pause 0.7
  done
}

# listens HOST PORT: somebody accepts connections there.
listens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# apt_update: reads the package lists anew; returns apt-get's exit code. DPkg::Lock::Timeout does not cover the lock of
# the lists, which apt-daily holds for minutes after a first boot (apt 2.6.1 fails at once), so this waits up to 10
# minutes for that lock.
apt_update() {
  local log=/run/trainyard/apt-update code now end
  IFS=. read -r now _ </proc/uptime
  end=$((now + 600))
  while :; do
    code=0
    apt-get -q update >"$log" 2>&1 || code=$?
    cat "$log"
    IFS=. read -r now _ </proc/uptime
    if ((code == 0 || now >= end)) || ! grep -q '/lists/lock' "$log"; then return "$code"; fi
    pause 5
  done
}

# has PACKAGE: it is installed.
has() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# installed PACKAGE[=VERSION]...: there when this returns; `changed` then counts it. A package that is there keeps its
# version. The package lists are read anew if they are absent or too old for the packages.
installed() {
  local wanted missing=()
  for wanted in "$@"; do
    has "${wanted%%=*}" || missing+=("$wanted")
  done
  ((${#missing[@]})) || return 0
  local install=(apt-get -q -y --no-install-recommends install "${missing[@]}")
  "${install[@]}" || { apt_update && "${install[@]}"; } || return
  changed=$((changed + 1))
}

# is_empty DISK: it holds no known content. A disk that cannot be read fails the stage: blkid exits with 2 for such a disk
# as well as for an empty one.
is_empty() {
  local code=0 mib
  mib=$(($(blockdev --getsize64 "$1") / 1048576))
  dd if="$1" of=/dev/null bs=1M count=1 status=none &&
    dd if="$1" of=/dev/null bs=1M count=1 skip=$((mib > 0 ? mib - 1 : 0)) status=none ||
    fail "the disk $1 cannot be read: it is not formatted"
  blkid -p "$1" || code=$?
  ((code == 0 || code == 2)) || fail "blkid cannot judge the disk $1 (exit $code): it is not formatted"
  ((code == 2))
}

# as_trainer COMMAND...: as the job user, without a login session and its cost.
as_trainer() { setpriv --reuid=trainer --regid=trainer --init-groups -- env HOME=/home/trainer "$@"; }
