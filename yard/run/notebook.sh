# shellcheck shell=bash
# The job of `yard notebook`: JupyterLab runs on the first node and listens only on a Unix socket.
#
# Only the job user can open the socket and the token. Neither of them is in an argument or in the log.
if [[ $NODE_RANK != 0 ]]; then
  until [[ -e $RUN_DIR/notebook-ended ]]; do sleep 5; done
  exit
fi
command -v jupyter-lab >/dev/null || {
  echo "yard: the job's Python environment contains no jupyterlab. Fix: add --with jupyterlab or another --env"
  exit 1
}
umask 077
folder=$(mktemp -d /tmp/yard-notebook.XXXXXXXX)
trap 'kill "${announcer-}" 2>/dev/null || true; rm -rf "$folder"; touch "$RUN_DIR/notebook-ended"' EXIT
rm -f "$RUN_DIR"/notebook "$RUN_DIR/notebook-ended"
od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$RUN_DIR/notebook-token"
(
  until [[ -S $folder/socket ]]; do sleep 0.2; done
  printf '%s %s %s' "${SLURMD_NODENAME:-$NODE_IP}" "$folder/socket" "$(<"$RUN_DIR/notebook-token")" >"$RUN_DIR/notebook.new"
  mv "$RUN_DIR/notebook.new" "$RUN_DIR/notebook"
) &
announcer=$!
# JupyterLab does not print a token from a file. The runtime folder contains the token and the kernels' keys.
export JUPYTER_TOKEN_FILE=$RUN_DIR/notebook-token JUPYTER_RUNTIME_DIR=$folder
(umask 022; exec jupyter-lab --no-browser --ServerApp.sock="$folder/socket" --ServerApp.root_dir="$HOME")
