# shellcheck shell=bash
# System packages by apt, only those that are missing.

system_packages=(
  qemu-system-x86 qemu-utils cloud-image-utils # the virtual machines and their seed disks
  mmdebstrap gpg uidmap e2fsprogs zstd lz4     # the golden image
  debian-archive-keyring                       # its signatures, also on Ubuntu
  vde2                                         # the private network between machines
  openssh-client rsync                         # talking to nodes
  ca-certificates curl                         # everything fetched later
)

# Prints the packages to install, one a line. A Python that is new enough makes Debian's own unnecessary.
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

# as_root COMMAND...: runs it as root, by sudo where needed.
as_root() {
  if [[ $EUID == 0 ]]; then "$@"; else sudo "$@"; fi
}

# Ends the set-up with what to install when nobody here may install it.
require_root_for() {
  [[ $EUID == 0 ]] && return
  if have sudo && { sudo -n true 2>/dev/null || { [[ -t 0 && -t 2 ]] && sudo -v; }; }; then return; fi
  say "These packages are missing, and this user may not install them (not root, no sudo):" >&2
  printf '\n    apt-get install --no-install-recommends %s\n\n' "$*" >&2
  die "Have an administrator run that line, then run this again."
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  as_root dpkg --configure -a # mends what an interrupted run left half done
  as_root apt-get -o DPkg::Lock::Timeout=300 update
  as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l \
    apt-get -o DPkg::Lock::Timeout=300 -y --no-install-recommends install "$@"
}
