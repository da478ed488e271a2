# shellcheck shell=bash
# The checkout's own folder: passphrase, Pulumi state, programs, and env.sh to activate it all.

make_state() {
  mkdir -p "$logs" "$state/state" "$state/stacks" "$state/run" "$state/pulumi-home"
  if [[ ! -s $state/passphrase ]]; then
    (umask 077 && head -c 32 /dev/urandom | base64 >"$state/passphrase")
  fi
  # `pulumi stack init` writes the salt beside the Pulumi.yaml it runs under; with this one it stays out of stacks/.
  printf 'name: trainyard\nruntime: python\nstackConfigDir: stacks\n' >"$state/Pulumi.yaml"
}

write_env() {
  {
    echo '# Written by tools/setup.sh. To use this checkout: . .trainyard/env.sh'
    printf 'export PATH=%q:%q:$PATH\n' "$root/.venv/bin" "$state/bin"
    echo '# Your own Pulumi backend, home and passphrase stay in force with TRAINYARD_USE_MY_PULUMI=1.'
    echo 'if [ "${TRAINYARD_USE_MY_PULUMI:-}" != 1 ]; then'
    printf 'export PULUMI_BACKEND_URL=%q\n' "file://$state/state"
    printf 'export PULUMI_HOME=%q\n' "$state/pulumi-home"
    printf 'export PULUMI_CONFIG_PASSPHRASE_FILE=%q\n' "$state/passphrase"
    echo 'unset PULUMI_CONFIG_PASSPHRASE'
    echo 'fi'
    echo 'export PULUMI_SKIP_UPDATE_CHECK=true'
    echo '# Reading the clouds SDKs takes mypy two minutes, once for all checkouts.'
    printf 'export MYPY_CACHE_DIR=%q\n' "$cache/mypy"
    echo '# Without bytecode, every command would compile the Pulumi SDK anew: a second of each preview.'
    echo 'unset PYTHONDONTWRITEBYTECODE'
    if [[ $(cat "$state/command-plugin") == stand-in ]]; then
      echo '# Where the official pulumi-command could not be installed, no other plugin can: do not wait for a download.'
      echo 'export PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true'
    fi
  } >"$state/env.sh.new"
  mv "$state/env.sh.new" "$state/env.sh"
}

# Puts the freshly made program folder in place, unless it is as before: a pulumi may be running from it.
publish_bin() {
  if diff -rq --no-dereference "$state/bin.new" "$state/bin" >/dev/null 2>&1; then return; fi
  rm -rf "${state:?}/bin"
  mv "$state/bin.new" "$state/bin"
}
