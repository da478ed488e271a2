#!/usr/bin/env bash
# Reports the sizes of memory and /dev/shm. Data loaders and NCCL store buffers in /dev/shm.
shm_facts() {
  local blocks size key memory
  read -r blocks size < <(stat -f -c '%b %S' /dev/shm 2>/dev/null) || true
  while read -r key memory _; do
    [[ $key != MemTotal: ]] || break
  done </proc/meminfo
  report shm "$((${blocks:-0} * ${size:-0} / 1024))" "$memory"
}
