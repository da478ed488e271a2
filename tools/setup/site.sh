#!/usr/bin/env bash
# Builds the documentation as a site in .trainyard/site/html, with MkDocs in its own virtual environment. Fails if a link
# or an anchor does not exist, or if a page is not in the navigation of mkdocs.yml.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
requirements=$root/tools/setup/site-requirements.txt
venv=$root/.trainyard/site/venv
if [[ $(cat "$venv/stamp" 2>/dev/null) != "$(sha256sum <"$requirements")" ]]; then
  "$root/.venv/bin/python" -m venv --clear "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-deps --require-hashes \
    --only-binary :all: -r "$requirements"
  sha256sum <"$requirements" >"$venv/stamp"
fi
# The site's only page that is not in the repository, because `yard checks` prints the same.
(cd "$root" && .venv/bin/python -m tools.reference --checks .trainyard/site/checks.md)
# MkDocs prints advertisements for its successors without this variable. With --quiet, it would ignore warnings, and the
# strict build would succeed with broken links.
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --config-file "$root/mkdocs.yml"
echo "the site is in $root/.trainyard/site/html"
