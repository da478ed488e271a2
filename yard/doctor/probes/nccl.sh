#!/usr/bin/env bash
# Reports NCCL's messages in the log of the newest GPU job on this node (`record_nccl` in yard/run/shared.sh), and
# the libraries of running ranks. Line formats: NVIDIA/nccl, src/init.cc ("Using network"), src/graph/topo.cc
# ("NCCL_TOPO_FILE set by environment to"), src/plugin/net ("Loaded net plugin"), "Plugin Path" of HPC-X's plugin; read
# 2026-11-22. Tested on an H100 with a running rank and NCCL 2.28.9.
# shellcheck disable=SC2154,SC2016
nccl_facts() {
  local log
  # The job's user chooses the file's content.
  log=$(as_job_user timeout 20 bash -c '
    while read -r folder; do
      for file in "$folder/$2".*; do
        [[ ! -s $file ]] || { echo "$folder"; head -c 1000000 "$file"; exit; }
      done
    done < <(ls -td "$1"/*/nccl 2>/dev/null | head -n 20)' - "$shared" "${HOSTNAME%%.*}" 2>/dev/null)
  if [[ -n $log ]]; then
    local job=${log%%/nccl$'\n'*}
    report nccl job "${job##*/}"
    report nccl version "$(sed -n 's/.*NCCL version //p' <<<"$log" | head -n 1)"
    report nccl network "$(sed -n 's/.*Using network //p' <<<"$log" | head -n 1)"
    report nccl topology "$(sed -n 's/.*NCCL_TOPO_FILE set by environment to //p' <<<"$log" | head -n 1)"
    report nccl plugin "$(sed -n -e 's/.*Plugin Path : //p' -e 's/.*Loaded net plugin //p' <<<"$log" | head -n 1)"
  fi
  # NCCL does not log its own path, so the path is known only while a rank runs.
  report nccl libraries "$(grep -hoE '/[^ ]*libnccl(-net[^ /]*)?\.so[^ ]*' /proc/[0-9]*/maps 2>/dev/null | sort -u | paste -sd' ')"
}
