# shellcheck shell=bash
# Installs missing system packages with apt.

system_packages=(
  qemu-system-x86 qemu-utils cloud-image-utils # the virtual machines and their seed disks
  mmdebstrap gpg uidmap e2fsprogs zstd lz4 binutils # the golden image
  debian-archive-keyring                       # keys of Debian's archive, also on Ubuntu
  vde2                                         # the private network between machines
  openssh-client rsync                         # connections to nodes
  ca-certificates curl                         # downloads
)

# Prints the missing packages, one per line. Debian's Python package is omitted if a suitable Python is installed.
missing_packages() {
  local wanted=("${system_packages[@]}") name installed
  if ! find_python >/dev/null; then
    if have python3 && ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      wanted+=(python3.11 python3.11-venv)
    else
      wanted+=(python3 python3-venv)
    fi
  fi
  installed=$(dpkg-query -W -f='${db:Status-Abbrev}${Package}\n' "${wanted[@]}" 2>/dev/null | sed -n 's/^ii //p' || true)
  for name in "${wanted[@]}"; do
    grep -qx "$name" <<<"$installed" || printf '%s\n' "$name"
  done
}

# Prints the SSH ports of a local stack with two workers that are in use. The argument is the first port.
used_ports() {
  local port
  for port in "$1" $(($1 + 1)) $(($1 + 2)); do
    if (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; fi
  done
}

# Ends the set-up if the ports of the local stack are in use, because Python's check of the stack file (tools.demo
# --check) needs packages whose installation takes minutes. A stack of this checkout may use its own ports.
require_ports() {
  local file=stacks/Pulumi.local.yaml base used free
  [[ ! -d $state/run/local ]] || return 0
  base=$(sed -n 's/^ *ssh_port_base: *\([0-9]*\).*/\1/p' "$root/$file")
  used=$(used_ports "${base:=22100}" | paste -sd' ')
  [[ $used ]] || return 0
  for ((free = 22400; free < 60000; free += 300)); do [[ $(used_ports "$free") ]] || break; done
  die "$file: SSH ports on 127.0.0.1 are in use by another program, for example the local cluster of another checkout:" \
    "$used. Nothing was changed. Fix: write \`ssh_port_base: $free\` under \`platform:\` in $file, or stop the other" \
    "cluster if it is yours"
}

# as_root COMMAND...: runs a command as root, with sudo if necessary.
as_root() {
  if [[ $EUID == 0 ]]; then "$@"; else sudo "$@"; fi
}

# require_root_for PACKAGE...: if this user cannot install packages, prints the necessary command and ends the set-up.
require_root_for() {
  [[ $EUID == 0 ]] && return
  if have sudo && { sudo -n true 2>/dev/null || { [[ -t 0 && -t 2 ]] && sudo -v; }; }; then return; fi
  say "These packages are missing, and this user may not install them (not root, no sudo):" >&2
  printf '\n    apt-get install --no-install-recommends %s\n\n' "$*" >&2
  die "Ask an administrator to run this command, then run the set-up again."
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  as_root dpkg --configure -a # completes an interrupted installation
  as_root apt-get -o DPkg::Lock::Timeout=300 update
  as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l \
    apt-get -o DPkg::Lock::Timeout=300 -y --no-install-recommends install "$@"
}
