#!/usr/bin/env bash
# Reports the number of working GPUs, or the number of device files for fake GPUs.
gpus_facts() {
  local TRAINYARD_GPU_DEVICE='' TRAINYARD_GPU_TYPE='' found=0 file
  # shellcheck source=/dev/null
  [[ ! -r /etc/trainyard/node.env ]] || source /etc/trainyard/node.env
  if [[ $TRAINYARD_GPU_TYPE == fake ]]; then
    for file in "$TRAINYARD_GPU_DEVICE"[0-9]*; do
      [[ ! -c $file ]] || found=$((found + 1))
    done
  elif command -v nvidia-smi >/dev/null; then
    found=$(timeout 60 nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
  fi
  report gpus "$found"
}
