# shellcheck shell=bash
# The pulumi-command plugin (official, else this project's stand-in) and cloud-init's schema checker.

command_version() { sed -n 's/^pulumi-command==\([0-9.]*\).*/\1/p' "$root/requirements.lock"; }

# Decided once and remembered in .trainyard/command-plugin: "official VERSION" or "stand-in".
choose_command_plugin() {
  local version
  version=$(command_version)
  [[ -s $state/command-plugin ]] && return
  if PULUMI_HOME=$state/pulumi-home PULUMI_SKIP_UPDATE_CHECK=true timeout 60 \
    "$state/bin.new/pulumi" plugin install resource command "$version"; then
    echo "official $version" >"$state/command-plugin"
  else
    echo stand-in >"$state/command-plugin"
  fi
}

link_command_plugin() {
  [[ $(cat "$state/command-plugin") == stand-in ]] || return 0
  ln -s "$root/offline/bin/pulumi-resource-command" "$state/bin.new/"
}

describe_command_plugin() {
  if [[ $(cat "$state/command-plugin") == stand-in ]]; then
    say "pulumi-command: the project's stand-in, since the official plugin cannot be installed here (to try again: rm .trainyard/command-plugin)"
  else
    say "pulumi-command: $(cat "$state/command-plugin")"
  fi
}

cloud_init_dir=$cache/cloud-init

# Not fatal: only the tests of rendered user-data use it, and they say so when it is absent.
fetch_cloud_init() {
  [[ -d $cloud_init_dir/cloudinit ]] && return
  (cd "$root" && "$venv/bin/python" -m tools.cloud_init "$cloud_init_dir") || echo "not available"
}

write_cloud_init() {
  [[ -d $cloud_init_dir/cloudinit ]] || return 0
  printf '#!/bin/sh\nPYTHONPATH=%q exec %q -m cloudinit.cmd.main "$@"\n' "$cloud_init_dir" "$venv/bin/python" >"$state/bin.new/cloud-init"
  chmod 755 "$state/bin.new/cloud-init"
}

describe_cloud_init() {
  if [[ -d $cloud_init_dir/cloudinit ]]; then
    say "cloud-init schema checker: $cloud_init_dir (unpacked, not installed)"
  else
    say "cloud-init schema checker: could not be fetched; the schema tests will be skipped (see $logs/setup-cloud-init.log)"
  fi
}
