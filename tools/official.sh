#!/usr/bin/env bash
# Runs tests with an official Pulumi plugin.
# Usage: tools/official.sh PLUGIN [PYTEST ARGUMENT...]
#   command   tests of the local stack and of existing hosts, on virtual machines, with pulumi-command
#   gcp       tests of the Google Cloud stacks with pulumi-gcp and a simulated Google API on loopback
# Exit code: 3 if the plugin is not installed and cannot be downloaded, otherwise the exit code of pytest.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR
source "$root/tools/setup/common.sh"
source "$root/tools/setup/plugins.sh"
cd "$root"

case ${1:-} in
  command) tests=(tests/official/test_command.py tests/integration/test_{cluster,bundle,hosts}.py) ;;
  gcp) tests=(tests/official/test_gcp.py) ;;
  *) die "unknown plugin '${1:-}'. Usage: tools/official.sh command|gcp [PYTEST ARGUMENT...]" ;;
esac
plugin=$1 version=$(plugin_version "$1")
shift

if ! home=$(official_home "$plugin"); then
  home=$state/official
  PULUMI_HOME=$home timeout 300 pulumi plugin install resource "$plugin" "$version" >&2 || true
fi
if ! PULUMI_HOME=$home official_home "$plugin" >/dev/null; then
  cat >&2 <<END
error: the official plugin pulumi-$plugin $version is not installed and could not be downloaded. Nothing was tested.
Fix: run \`PULUMI_HOME=~/.pulumi pulumi plugin install resource $plugin $version\` with access to the download server, or
add \`--file PROGRAM\` to this command, with the plugin's program from another computer
END
  exit 3
fi
program=$home/$(plugin_program "$plugin")
echo "pulumi-$plugin: official plugin, version $(python -m offline.cloud.official "$program") (of the SDK: $version), $program"
(($#)) || set -- -v --durations 12 "${tests[@]}"
exec python -m pytest --official "$home" "$@"
