#!/usr/bin/env bash
# For nodes whose fabric has an NCCL plugin of its own.
# shellcheck disable=SC2154,SC2317,SC2329
# --- NCCL's plugin for the fabric -------------------------------------------------------------------------------------

# use_transport FOLDER: puts the folder of the fabric's NCCL plugin first in LD_LIBRARY_PATH. Without a plugin in it NCCL
# would use plain TCP and report no error.
use_transport() {
  local plugins=("$1"/libnccl-net*.so*)
  if [[ ! -e ${plugins[0]} ]]; then
    say "rank $RANK finds no NCCL plugin $1/libnccl-net*.so; \`yard doctor\` shows whether the node has it"
    exit 1
  fi
  export LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
