# shellcheck shell=bash
# The folder .trainyard in the checkout: passphrase, Pulumi state, programs, and env.sh, which activates
# them.

make_state() {
  mkdir -p "$logs" "$state/state" "$state/stacks" "$state/run" "$state/pulumi-home"
  if [[ ! -s $state/passphrase ]]; then
    (umask 077 && head -c 32 /dev/urandom | base64 >"$state/passphrase")
  fi
}

write_env() {
  {
    echo '# Written by tools/setup.sh. To use this checkout: . .trainyard/env.sh'
    printf 'export PATH=%q:%q:$PATH\n' "$root/.venv/bin" "$state/bin"
    echo '# TRAINYARD_USE_MY_PULUMI=1 keeps your Pulumi backend, home and passphrase.'
    echo 'if [ "${TRAINYARD_USE_MY_PULUMI:-}" != 1 ]; then'
    echo '# Pulumi does not write files with metadata atomically. After a kill in between, it cannot read the state.'
    printf 'export PULUMI_BACKEND_URL=%q\n' "file://$state/state?metadata=skip"
    printf 'export PULUMI_HOME=%q\n' "$state/pulumi-home"
    printf 'export PULUMI_CONFIG_PASSPHRASE_FILE=%q\n' "$state/passphrase"
    echo 'unset PULUMI_CONFIG_PASSPHRASE'
    echo 'fi'
    echo 'export PULUMI_SKIP_UPDATE_CHECK=true'
    echo '# `pulumi stack rm` keeps the stack file, as with --preserve-config.'
    echo 'export PULUMI_OPTION_PRESERVE_CONFIG=true'
    echo '# mypy needs two minutes for the cloud SDKs. All checkouts share its cache.'
    printf 'export MYPY_CACHE_DIR=%q\n' "$cache/mypy"
    echo '# Without bytecode files, every command compiles the Pulumi SDK again, which takes a second.'
    echo 'unset PYTHONDONTWRITEBYTECODE'
    if [[ $(cat "$state/command-plugin") == stand-in ]]; then
      echo '# The official pulumi-command could not be downloaded, so other plugins cannot be either.'
      echo 'export PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true'
    fi
  } >"$state/env.sh.new"
  mv "$state/env.sh.new" "$state/env.sh"
}

# Replaces the program folder if it has changed. An unchanged folder is kept, because a pulumi process may be running
# from it.
publish_bin() {
  if diff -rq --no-dereference "$state/bin.new" "$state/bin" >/dev/null 2>&1; then return; fi
  rm -rf "${state:?}/bin"
  mv "$state/bin.new" "$state/bin"
}
