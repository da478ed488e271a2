#!/usr/bin/env bash
# Reports the GPUs' uncorrectable memory errors, pending row remaps and Xid events.
faults_facts() {
  command -v nvidia-smi >/dev/null || return 0
  local gpu errors pending line
  while IFS=', ' read -r gpu errors pending; do
    report faults gpu "$gpu" "$errors" "$pending"
  done < <(timeout 60 nvidia-smi --format=csv,noheader,nounits \
    --query-gpu=index,ecc.errors.uncorrected.volatile.total,remapped_rows.pending 2>/dev/null)
  while read -r line; do
    report faults xid "$line"
  done < <(timeout 20 dmesg 2>/dev/null | grep -Eo 'NVRM: Xid .*' | tail -n 3)
}
