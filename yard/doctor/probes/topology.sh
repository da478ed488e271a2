#!/usr/bin/env bash
# Reports the links from each GPU to the other devices in the notation of `nvidia-smi topo -m`, for example NV18 or PIX.
topology_facts() {
  command -v nvidia-smi >/dev/null || return 0
  local row
  while read -r row; do
    report topology "${row%% *}" "${row#* }"
  done < <(timeout 60 nvidia-smi topo -m 2>/dev/null | sed 's/\x1b\[[0-9;]*m//g' |
    awk '/^GPU[0-9]+/ { line = $1; for (i = 2; i <= NF && $i ~ /^(X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS)$/; i++) line = line " " $i; print line }')
}
