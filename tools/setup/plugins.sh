# shellcheck shell=bash
# The pulumi-command plugin (the official one or this project's replacement) and cloud-init's schema checker.

# plugin_version PLUGIN: a plugin has the version of its SDK.
plugin_version() { sed -n "s/^pulumi-$1==\([0-9.]*\).*/\1/p" "$root/requirements.lock"; }

# plugin_program PLUGIN: the program of a plugin, as a path in a Pulumi home.
plugin_program() { echo "plugins/resource-$1-v$(plugin_version "$1")/pulumi-resource-$1"; }

# official_home PLUGIN: prints the Pulumi home in which the user has installed the official plugin. This project's
# replacements are links to offline/bin.
official_home() {
  local home program
  for home in "${PULUMI_HOME:-}" "$HOME/.pulumi"; do
    program=$home/$(plugin_program "$1")
    [[ -x $program && $(readlink -f "$program") != */offline/bin/* ]] || continue
    echo "$home"
    return
  done
  return 1
}

# Writes the choice to .trainyard/command-plugin: "official VERSION" or "stand-in". Later runs use the same plugin.
choose_command_plugin() {
  local version place home
  version=$(plugin_version command)
  place=$state/pulumi-home/plugins/resource-command-v$version
  [[ -x $place/pulumi-resource-command && -s $state/command-plugin ]] && return
  rm -rf "$place"
  if home=$(official_home command); then
    mkdir -p "$place"
    ln -s "$home/$(plugin_program command)" "$place/"
    echo "official $version" >"$state/command-plugin"
  elif installer_answers && PULUMI_HOME=$state/pulumi-home PULUMI_SKIP_UPDATE_CHECK=true timeout 120 \
    "$state/bin.new/pulumi" plugin install resource command "$version"; then
    echo "official $version" >"$state/command-plugin"
  else
    # In this folder, the engine finds the replacement without network access and without a warning about PATH.
    mkdir -p "$place"
    ln -s "$root/offline/bin/pulumi-resource-command" "$place/"
    echo stand-in >"$state/command-plugin"
  fi
}

describe_command_plugin() {
  if [[ $(cat "$state/command-plugin") == stand-in ]]; then
    say "pulumi-command: the project's replacement, because the official plugin cannot be installed (to try again: rm .trainyard/command-plugin)"
    say "the clouds' plugins: not available either. \`pulumi up\` and \`yard preview --live\` need them for cloud stacks (docs/pulumi.md). Other previews and rehearsals work without them"
  else
    say "pulumi-command: $(cat "$state/command-plugin")"
  fi
}

cloud_init_dir=$cache/cloud-init

# A failure does not end the set-up. Only the user-data tests need the checker, and they are skipped if it is missing.
fetch_cloud_init() {
  [[ -d $cloud_init_dir/cloudinit ]] && return
  # python.sh sets venv. tools/official.sh sources this file without python.sh, but does not call this function.
  # shellcheck disable=SC2154
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
    say "cloud-init schema checker: not available; tests that need it are skipped (see $logs/setup-cloud-init.log)"
  fi
}
