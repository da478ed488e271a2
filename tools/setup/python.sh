# shellcheck shell=bash
# The virtual environment, pinned by requirements.lock.

venv=$root/.venv

# Prints the first Python that is 3.11 or newer and can make a virtual environment.
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
  # Of pyproject.toml only what the installed package is made of: a new test marker must not make everything anew.
  # The place belongs to the stamp: the programs in a virtual environment name it, so it cannot be moved.
  { cat "$root/requirements.lock"; sed '/^\[tool\.ruff/,$d' "$root/pyproject.toml"; readlink -m "$venv"; } | sha256sum | cut -d' ' -f1
}

python_ready() {
  [[ -x $venv/bin/python && $(cat "$venv/.trainyard-stamp" 2>/dev/null) == "$(python_stamp)" ]] &&
    "$venv/bin/python" -c '' 2>/dev/null
}

install_python() {
  local python pip
  python=$(find_python) || die "no Python 3.11 or newer with venv here. Fix: install python3.11 or newer and its -venv package"
  [[ ! -L $venv ]] || die "$venv is a link to another checkout's environment, which is out of date. Fix: run set-up there"
  rm -f "$venv/.trainyard-stamp"
  "$python" -m venv --clear "$venv"
  pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input install --progress-bar off)
  # Without --no-compile pip would spend longer compiling the cloud SDKs, most of which no stack imports.
  "${pip[@]}" --no-deps --no-compile --require-hashes --only-binary :all: -r "$root/requirements.lock"
  # A plain path entry (editable_mode=compat) keeps yard's start free of setuptools' import finder.
  "${pip[@]}" --no-deps --no-index --no-build-isolation --config-settings editable_mode=compat -e "$root"
  python_stamp >"$venv/.trainyard-stamp"
}
