# Installs the locked version of NVIDIA's driver and builds its open kernel modules with DKMS. Sourced by 30-driver.
# drivers: install

source /usr/local/lib/trainyard/packages.sh

# components/node/files.py writes this file.
readonly lock=$kind/driver.lock
# On Debian 13, packages, downloads and the module build use 1.3 GiB (measured 2026-11-22).
readonly driver_mib=1536

# read_lock ENTRY...: sets `names` and `wanted` (NAME=VERSION) to the locked packages in these entries.
read_lock() {
  local entry name version
  names=() wanted=()
  while read -r entry name version _; do
    [[ " $* " == *" $entry "* ]] || continue
    names+=("$name")
    wanted+=("$name=$version")
  done <"$lock"
}

# has_packages: succeeds if all packages in `wanted` are installed in the listed versions.
has_packages() {
  local installed package pattern
  installed=$(dpkg-query -W -f ' ${Package}=${Version}=${db:Status-Status}\n' "${names[@]}" 2>/dev/null) || return 1
  for package in "${wanted[@]}"; do
    # A version in the lock may end with a wildcard.
    pattern="* $package=installed*"
    # shellcheck disable=SC2053
    [[ $installed == $pattern ]] || return 1
  done
}

# Writes the configuration files from the lock. An entry is a line with the path, followed by the content after "| ".
write_files() {
  local path
  while read -r path; do
    put_file "$path" 0644 root:root < <(awk -v path="$path" '
      $1 == "file" { inside = $2 == path; next }
      inside && sub(/^\| ?/, "")' "$lock")
  done < <(sed -n 's/^file //p' "$lock")
}

has_module() { [[ $(modinfo -k "$kernel" -F version "$module" 2>/dev/null) == "$TRAINYARD_DRIVER" ]]; }

# own_archive: prints the address of the distribution's archive in the node's apt sources. If the stack file has a
# mirror, the stage 20-apt has set the mirror's address there. The file that add_archives writes is ignored, because it
# may still have an old address. Without --no-release-info, apt omits each source whose indexes it has not read
# (DoIndexTargets in cmdline/apt-get.cc of apt 3.0.4, tested 2026-11-22), and a fresh image has no indexes.
own_archive() {
  local codename
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  apt-get indextargets --no-release-info --format '$(SOURCESENTRY) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
    awk -v codename="$codename" '$1 !~ /trainyard-driver/ && $2 == codename && !found++ { sub(/\/$/, "", $3); print $3 }'
}

# Adds the archives from the lock and reads their indexes.
add_archives() {
  local entry name url fingerprint address suite lines='' key file=/etc/apt/sources.list.d/trainyard-driver.list
  while read -r entry name url fingerprint address suite; do
    [[ $entry == archive ]] || continue
    [[ $address != - ]] || address=$(own_archive)
    [[ -n $address ]] ||
      fail "driver $TRAINYARD_DRIVER: the apt sources of this node do not contain the archive of $TRAINYARD_OS. Fix: add it to /etc/apt"
    apt_key "$name" "$url" "$fingerprint" ||
      fail "driver $TRAINYARD_DRIVER: the key of the archive $name at $(mirrored "$url") cannot be downloaded. Fix: check the network and \`mirrors\` in the stack file"
    lines+="deb [signed-by=$key] $(mirrored "$address") $suite"$'\n'
  done <"$lock"
  put_file "$file" 0644 root:root <<<"${lines%$'\n'}"
  apt_update "$file" ||
    fail "driver $TRAINYARD_DRIVER: a package archive cannot be read ($(grep -m1 '^[EW]:' /run/trainyard/apt-update)). Fix: check the network and \`mirrors\` in the stack file"
}

# differences: prints each package in `names` that the archives do not have with the locked version and hash, and the
# versions that they have.
differences() {
  apt-cache show "${names[@]}" 2>/dev/null | awk -v names=" ${names[*]} " '
    FILENAME != "-" { if (index(names, " " $2 " ")) { version[$2] = $3; hash[$2] = $4; order[++count] = $2 }; next }
    /^Package: / { name = $2 }
    /^Version: / { found = $2; others[name] = others[name] " " $2 }
    /^SHA256: / {
      wanted = version[name]
      same = wanted ~ /\*$/ ? index(found, substr(wanted, 1, length(wanted) - 1)) == 1 : found == wanted
      if (same && (hash[name] == "-" || hash[name] == $2)) good[name] = 1
      else if (same) others[name] = others[name] " (SHA-256 " $2 ")"
    }
    END {
      for (i = 1; i <= count; i++) if (!(order[i] in good)) {
        name = order[i]
        print name " " version[name] " with SHA-256 " hash[name] ", and the archives have" (others[name] ? others[name] : " no such package")
      }
    }' "$lock" -
}

# check_lock: fails if the archives do not contain the locked packages.
check_lock() {
  local found
  mapfile -t found < <(differences)
  ((${#found[@]} == 0)) ||
    fail "driver $TRAINYARD_DRIVER: the archives differ from the lock (${#found[@]} of ${#names[@]} packages). The lock has ${found[0]}. Fix: use a mirror that has the locked version, or update components/catalog/drivers.yaml"
}

free_mib() { df --output=avail -m /usr /var | sort -n | sed -n 2p; }

check_space() {
  local free
  # An interrupted installation needs less space to continue.
  ! dpkg-query -W -f ' ${db:Status-Status}\n' "${names[@]}" 2>/dev/null | grep -Eq '^ (installed|unpacked|half-)' ||
    return 0
  free=$(free_mib)
  ((free >= driver_mib)) ||
    fail "driver $TRAINYARD_DRIVER: its installation needs $driver_mib MiB on /usr and /var, and $free MiB are free. Fix: remove files, or use a larger disk"
}

# explain_failure: fails with the reason for the failed installation.
explain_failure() {
  local file error
  (($(free_mib) > 50)) ||
    fail "driver $TRAINYARD_DRIVER: the disk became full during the installation. Fix: remove files, or use a larger disk"
  for file in /var/lib/dkms/*/"$TRAINYARD_DRIVER"/build/make.log; do
    error=$(grep -m1 -E ' error: |\*\*\*' "$file" 2>/dev/null) || continue
    fail "driver $TRAINYARD_DRIVER: DKMS cannot build the modules for kernel $kernel ($error). Fix: boot a kernel that this driver supports, or lock another driver; $file has all messages"
  done
  fail "driver $TRAINYARD_DRIVER: apt-get cannot install the packages. Fix: see the messages above"
}

install_packages() {
  local headers
  kernel=$(uname -r)
  module=$(sed -n 's/^module //p' "$lock")
  read_lock package
  if has_packages && has_module; then
    log "driver $TRAINYARD_DRIVER is installed for kernel $kernel"
    return 0
  fi
  log "installing driver $TRAINYARD_DRIVER for kernel $kernel"
  add_archives
  check_lock
  check_space
  write_files
  # An earlier installation may have been interrupted. Its packages are configured before new packages are unpacked.
  dpkg --configure -a || log 'some packages are not configured yet'
  headers=linux-headers-$kernel
  is_installed "$headers" || install_missing "$headers" || {
    (($(free_mib) > 50)) || explain_failure
    fail "driver $TRAINYARD_DRIVER: apt-get cannot install $headers, which the build of the modules needs. Fix: if the archives no longer have it, install the distribution's current kernel, and reboot; otherwise see the messages above"
  }
  install_locked || explain_failure
  # If the packages were installed under another kernel, the running kernel has no module yet.
  has_module || dkms autoinstall -k "$kernel" || explain_failure
  has_module || fail "driver $TRAINYARD_DRIVER: kernel $kernel has no module $module of this version. Fix: see dkms status"
  read_lock optional
  ((${#names[@]} == 0)) || { [[ -z $(differences) ]] && install_locked; } ||
    log "WARNING: the archives do not have the locked versions of ${names[*]}"
}

install_locked() {
  local install=(apt-get -q -y --no-install-recommends --allow-change-held-packages --allow-downgrades install
    "${wanted[@]}")
  "${install[@]}" || { apt_update && "${install[@]}"; }
}

# install_driver: installs the driver if it is missing, and removes other drivers from the kernel.
install_driver() {
  install_packages
  has_gpu ||
    fail "driver $TRAINYARD_DRIVER is installed for kernel $kernel, but this machine has no NVIDIA GPU. Fix: remove \`driver: install\` from group $TRAINYARD_GROUP, or use a machine type with GPUs"
  unload_other_driver
}

has_gpu() {
  local vendor
  for vendor in /sys/bus/pci/devices/*/vendor; do
    [[ ! -e $vendor || $(<"$vendor") != 0x10de || $(<"${vendor%vendor}class") != 0x03* ]] || return 0
  done
  return 1
}

# reboot_for REASON: reboots this machine once. Existing hosts are rebooted by their owner.
reboot_for() {
  local mark=/var/lib/trainyard/driver-reboot
  ! is_existing_host || fail "$1. Fix: reboot this host, then run pulumi up again"
  [[ ! -e $mark ]] || fail "$1, also after a reboot. Fix: see $mark and lsmod"
  printf '%s\n' "$1" >"$mark"
  log "rebooting once: $1"
  printf 'trainyard: %s reboots: %s\n' "$TRAINYARD_NODE" "$1" 2>/dev/null >/dev/console || true
  systemctl reboot
  pause 600
  fail "$1, and the reboot did not start"
}

# unload_other_driver: removes nouveau or another version of the driver from the kernel.
unload_other_driver() {
  local loaded
  if [[ -e /sys/module/nouveau ]]; then
    modprobe -r nouveau 2>/dev/null || reboot_for 'the module nouveau uses the GPUs'
  fi
  [[ -e /sys/module/nvidia/version ]] || return 0
  loaded=$(</sys/module/nvidia/version)
  [[ $loaded != "$TRAINYARD_DRIVER" ]] || return 0
  ! systemctl is-active --quiet nvidia-persistenced.service || systemctl stop nvidia-persistenced.service
  modprobe -r nvidia-uvm nvidia-drm nvidia-modeset nvidia-peermem nvidia 2>/dev/null ||
    reboot_for "driver $loaded is loaded and in use, and $TRAINYARD_DRIVER is installed"
}

# install_nvswitch: on nodes with NVSwitch, installs the fabric manager and NSCQ with the driver's version. The driver
# creates the folder in /proc (NVIDIA/gpu-driver-container at 06a208ca, _assert_nvswitch_system, read 2026-11-22).
install_nvswitch() {
  compgen -G '/proc/driver/nvidia-nvswitch/devices/*' >/dev/null || return 0
  read_lock nvswitch
  ((${#names[@]})) ||
    fail "driver $TRAINYARD_DRIVER: this machine has NVSwitch, and the lock for $TRAINYARD_OS has no fabric manager. Fix: use ubuntu-24.04, or an image with a driver"
  ! has_packages || return 0
  check_lock
  install_locked || explain_failure
}
