# shellcheck shell=bash
# The virtual environment, pinned by requirements.lock.

venv=$root/.venv

# Prints the first Python that is 3.11 or newer and can create virtual environments.
find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
    printf '%s' "$name"
    return
  done
  return 1
}

python_stamp() {
  # The stamp includes only the parts of pyproject.toml that affect the installed package, so a new test marker does not
  # recreate the environment. The stamp includes the path, because a virtual environment cannot be moved.
  { cat "$root/requirements.lock"; sed '/^\[tool\.ruff/,$d' "$root/pyproject.toml"; readlink -m "$venv"; } | sha256sum | cut -d' ' -f1
}

python_ready() {
  [[ -x $venv/bin/python && $(cat "$venv/.trainyard-stamp" 2>/dev/null) == "$(python_stamp)" ]] &&
    "$venv/bin/python" -c '' 2>/dev/null
}

install_python() {
  local python pip
  python=$(find_python) || die "no Python 3.11 or newer with venv is installed. Fix: install python3.11 or newer and its -venv package"
  [[ ! -L $venv ]] || die "$venv is a link to the environment of another checkout and is out of date. Fix: run the set-up in that checkout"
  rm -f "$venv/.trainyard-stamp"
  "$python" -m venv --clear "$venv"
  pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input install --progress-bar off)
  # --no-compile: most modules of the cloud SDKs are never imported, so compiling all of them would waste time.
  "${pip[@]}" --no-deps --no-compile --require-hashes --only-binary :all: -r "$root/requirements.lock"
  # editable_mode=compat adds a plain path entry, so yard starts without the setuptools import finder.
  "${pip[@]}" --no-deps --no-index --no-build-isolation --config-settings editable_mode=compat -e "$root"
  python_stamp >"$venv/.trainyard-stamp"
}
