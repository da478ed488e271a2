#!/usr/bin/env bash
# Set-up on Debian or Ubuntu: system packages, Python environment, Pulumi CLI and this checkout's state folder.
# Idempotent: a second run takes about a second.
# Usage: tools/setup.sh [--image | --demo]
#   --image: also build the golden image for the virtual machines, in parallel
#   --demo: the same, after a check that this computer has the memory and the ports for the local stack
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR
source "$root/tools/setup/common.sh"
source "$root/tools/setup/system.sh"
source "$root/tools/setup/python.sh"
source "$root/tools/setup/pulumi.sh"
source "$root/tools/setup/plugins.sh"
source "$root/tools/setup/env.sh"

main() {
  [[ -r /etc/debian_version ]] || die "this set-up supports Debian and Ubuntu only. Fix: install the packages listed in tools/setup/ manually"
  [[ ${1:-} != --demo ]] || require_ports
  mkdir -p "$logs"
  one_at_a_time
  trap on_exit EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  choose_pulumi
  install_system
  start_python
  install_go
  start_pulumi
  await python system
  start_image "$@"
  start_cloud_init
  await pulumi
  make_state
  finish_programs
  await image
  describe_pulumi
  describe_command_plugin
  describe_cloud_init
  say "ready. To use this checkout in a shell: . .trainyard/env.sh"
}

one_at_a_time() {
  exec 9>"$state/setup.lock"
  flock -n 9 && return
  say "waiting for another set-up in this checkout"
  flock 9
}

on_exit() {
  local code=$?
  stop_steps
  rm -rf "$state/bin.new"
  ((code < 128)) || say "interrupted; run it again to continue" >&2
  exit "$code"
}

install_system() {
  local missing
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]})); then
    require_root_for "${missing[@]}"
    start system "System packages by apt (${missing[*]})" install_packages "${missing[@]}"
    # The next steps need Python, and curl if the Pulumi CLI must be installed.
    if ! find_python >/dev/null || [[ $pulumi_choice == none ]]; then await system; fi
  fi
}

install_go() {
  if ! needs_go || have go; then return; fi
  require_root_for golang-go
  await system # parallel apt runs would wait for each other
  start go "Go by apt, to build the Pulumi CLI" install_packages golang-go
  await go
}

start_python() { python_ready || start python "Python packages" install_python; }

start_pulumi() {
  [[ $pulumi_choice != none ]] || start pulumi "Pulumi CLI (a build takes some minutes)" install_pulumi
}

start_image() {
  [[ ${1:-} == --image || ${1:-} == --demo ]] || return 0
  if [[ $1 == --demo ]]; then
    (cd "$root" && "$venv/bin/python" -m tools.demo --check) || exit
  fi
  start image "Golden image" build_image
}

build_image() {
  cd "$root"
  "$venv/bin/python" -m components.platforms.local.image build
}

start_cloud_init() {
  [[ -d $cloud_init_dir/cloudinit ]] || start cloud-init "cloud-init's schema checker" fetch_cloud_init
}

# Fills .trainyard/bin and writes env.sh after all programs have been installed.
finish_programs() {
  choose_pulumi
  link_pulumi
  await cloud-init
  choose_command_plugin >"$logs/setup-plugin.log" 2>&1
  write_cloud_init
  publish_bin
  write_env
}

main "$@"
