# The node's parameters and the functions shared by all stages. Sourced before every stage. life.sh contains the
# functions that are used only by stages in the bundle.
# user-data: yes
set -euo pipefail
trap 'printf "%s\n" "$BASH_COMMAND" >/run/trainyard/failed-command' ERR
set -o errtrace
umask 022
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a LC_ALL=C.UTF-8

# shellcheck source=/dev/null
source /etc/trainyard/node.env
# Read by the stages that source this file.
# shellcheck disable=SC2034
readonly handover=/var/lib/trainyard/handover
# Folder in the bundle with the parameters for this node's kind.
# shellcheck disable=SC2034
readonly kind=/usr/local/lib/trainyard/kinds/$TRAINYARD_ROLE${TRAINYARD_GROUP:+-$TRAINYARD_GROUP}

log() { printf '%s\n' "$*"; }

fail() {
  printf '%s\n' "$*" >/run/trainyard/failed-command
  printf 'error: %s\n' "$*" >&2
  trap - ERR
  exit 1
}

is_head() { [[ $TRAINYARD_ROLE == head ]]; }
has_slurm() { [[ $TRAINYARD_SCHEDULER == slurm ]]; }

# An existing host has a ledger that records its state before it joined the cluster. `give-back` restores that state.
readonly ledger=/var/lib/trainyard/borrowed
is_existing_host() { [[ -d $ledger ]]; }
if is_existing_host; then
  # With these settings, every apt-get command in a stage records the packages that it installs, while it holds apt's
  # lock.
  export APT_CONFIG=$ledger/apt.conf
  # In mode "a", needrestart 3.5 restarts the owner's services. Its apt hook exits early if this variable is set.
  export NEEDRESTART_SUSPEND=1
fi
# remember PATH...: on an existing host, records the state of these files before their first change.
remember() { ! is_existing_host || "$ledger/remember" "$@"; }

# put_file PATH MODE OWNER:GROUP <content: writes the file and increments `changed` if the content differs. Starts
# processes only if it must, because processes start slowly on an emulated machine.
changed=0
put_file() {
  local path=$1 mode=$2 owner=$3 new to=$1
  # With -N and a large number of characters, bash reads a pipe in blocks. With -d, it reads byte by byte
  # (strace of bash 5.2.15, 2026-11-29).
  IFS= read -r -N 99999999 new || true
  [[ ! -e $path || $(<"$path") != "${new%$'\n'}" ]] || return 0
  changed=$((changed + 1))
  remember "$path"
  if [[ $mode == 0644 && $owner == root:root && ! -e $path && ! -L $path && -d ${path%/*} ]]; then
    printf '%s' "$new" >"$path"
    return 0
  fi
  # `install` deletes an old file first, so the file would be empty if the machine lost its power in the next seconds.
  # ext4 writes a file's content before the file replaces another one (auto_da_alloc: torvalds/linux at afd4672d, read
  # 2026-11-28).
  [[ ! -e $path ]] || to=$path.trainyard-new
  printf '%s' "$new" | install -D -m "$mode" -o "${owner%:*}" -g "${owner#*:}" /dev/stdin "$to"
  [[ $to == "$path" ]] || mv -T "$to" "$path"
}

# own_host_line: prints a line for /etc/hosts with the hostname of this machine, if the hostname is not the node name.
own_host_line() {
  [[ ${HOSTNAME%%.*} == "$TRAINYARD_NODE" ]] || echo "$TRAINYARD_PRIVATE_IP $HOSTNAME ${HOSTNAME%%.*}"
}

# put_block PATH <content: writes the cluster's lines between two marker lines, in a file that is also written by other
# programs. The other lines stay unchanged, and the file is replaced atomically. Fails without a change if one of the
# two markers is missing, because the cluster's lines cannot be identified.
put_block() {
  local path=$1 new=$1.trainyard-new lines line old='' kept='' inside=0 bad=0
  IFS= read -r -N 99999999 lines || true
  ! is_existing_host || "$ledger/remember" --block "$path"
  [[ ! -e $path ]] || IFS= read -r -d '' old <"$path" || true
  [[ -z $old ]] || while IFS= read -r line; do
    case $line in
      '# trainyard') bad=$((bad + inside)) inside=1 ;;
      '# end of trainyard') bad=$((bad + !inside)) inside=0 ;;
      *) ((inside)) || kept+=$line$'\n' ;;
    esac
  done <<<"${old%$'\n'}"
  ((bad + inside == 0)) ||
    fail "$path: '# trainyard' and '# end of trainyard' must enclose the cluster's lines; remove these lines and both markers"
  kept+=$'# trainyard\n'"$lines"$'# end of trainyard\n'
  [[ $kept != "$old" ]] || return 0
  [[ ! -e $new ]] || rm "$new"
  printf %s "$kept" >"$new"
  mv "$new" "$path"
  changed=$((changed + 1))
}

# Processes start slowly on an emulated machine, so the functions below wait and read the clock without a process.
# pause SECONDS: sleeps by reading from an empty pipe, which the first call creates with one process.
pause() {
  [[ ${idle_fd:-} ]] || exec {idle_fd}<> <(:)
  read -r -t "$1" -u "$idle_fd" _ || true
}

# wait_for SECONDS WHAT COMMAND...: polls until the command succeeds. After SECONDS, fails with a message that contains
# WHAT. Reads the uptime, because bash's SECONDS jumps when chrony steps the clock.
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

# apt_update [FILE]: updates the package lists. With FILE, reads only the archives in this file of /etc/apt, and returns
# apt-get's exit code, which is not 0 if one of them cannot be read. Without FILE, an archive that cannot be read is only
# a warning, and `unread` lists it: apt still reads the other archives (apt 2.8.4 of Ubuntu 24.04, tested 2026-11-24), and
# an image can have archives from which the node needs no package. Waits up to 10 minutes for the lock on the lists,
# because apt-daily holds it for minutes after the first boot. DPkg::Lock::Timeout does not apply to this lock (apt 2.6.1
# fails at once).
unread=
# Stages pass FILE through packages.sh and driver.sh.
# shellcheck disable=SC2120
apt_update() {
  local log=/run/trainyard/apt-update code now end only=()
  (($# == 0)) || only=(-o "Dir::Etc::SourceList=$1" -o Dir::Etc::SourceParts=/dev/null -o APT::Get::List-Cleanup=0
    -o APT::Update::Error-Mode=any)
  IFS=. read -r now _ </proc/uptime
  end=$((now + 600))
  while :; do
    code=0
    apt-get -q update "${only[@]}" >"$log" 2>&1 || code=$?
    cat "$log"
    IFS=. read -r now _ </proc/uptime
    if ((code == 0 || now >= end)) || ! grep -q '/lists/lock' "$log"; then break; fi
    pause 5
  done
  (($# == 0)) || return "$code"
  unread=$(sed -n 's/^Err:[0-9]* //p' "$log" | sort -u)
  [[ $unread ]] || return "$code"
  unread=${unread//$'\n'/, }
  log "WARNING: apt cannot read these package archives: $unread"
}

# is_installed PACKAGE
is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# install_missing PACKAGE[=VERSION]...: installs the missing packages and increments `changed`. Packages that are
# already installed keep their version. If the installation fails, it is retried after an update of the package lists.
install_missing() {
  local wanted missing=()
  for wanted in "$@"; do
    is_installed "${wanted%%=*}" || missing+=("$wanted")
  done
  ((${#missing[@]})) || return 0
  local install=(apt-get -q -y --no-install-recommends install "${missing[@]}")
  "${install[@]}" || { apt_update && "${install[@]}"; } || return
  changed=$((changed + 1))
}

life=${BASH_SOURCE[0]%/*}/life.sh
if [[ -e $life ]]; then
  # shellcheck source=/dev/null
  source "$life"
fi
