#!/usr/bin/env bash
# Runs the tests of the local stack and of existing hosts with the official pulumi-command plugin.
# Usage: tools/official.sh [PYTEST ARGUMENT...]
# Exit code: 3 if the plugin is not installed and cannot be downloaded, otherwise the exit code of pytest.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR
source "$root/tools/setup/common.sh"
source "$root/tools/setup/plugins.sh"
cd "$root"

if ! home=$(official_home); then
  home=$state/official
  PULUMI_HOME=$home timeout 120 pulumi plugin install resource command "$(command_version)" >&2 || true
fi
# The tests set up copies of this checkout. The set-up of a copy uses the plugin in this folder.
export PULUMI_HOME=$home
if ! official_home >/dev/null; then
  cat >&2 <<END
error: the official plugin pulumi-command $(command_version) is not installed and could not be downloaded. Nothing was tested.
Fix: run \`PULUMI_HOME=~/.pulumi pulumi plugin install resource command $(command_version)\` on a computer with access to
the download server. Without access, add \`--file PLUGIN\` with the plugin's program, which you can copy from another computer
END
  exit 3
fi
echo "pulumi-command $(command_version), official plugin: $home/$(command_place)/pulumi-resource-command"
(($#)) || set -- -v --durations 12 tests/integration/test_{cluster,bundle,hosts}.py
exec python -m pytest --official-plugin "$@"
