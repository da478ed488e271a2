#!/usr/bin/env bash
# Reports the GPU driver version, and the fabric manager on a machine with NVSwitch.
driver_facts() {
  [[ -e /sys/module/nvidia/version ]] || return 0
  report driver version "$(</sys/module/nvidia/version)"
  # GPUDirect RDMA needs either the module nvidia-peermem or DMA-BUF, which only the open kernel modules support.
  [[ ! -e /sys/module/nvidia_peermem ]] || report driver direct nvidia-peermem
  ! grep -qs 'Open Kernel Module' /proc/driver/nvidia/version || report driver direct dma-buf
  [[ -e /proc/driver/nvidia-nvswitch ]] || return 0
  report driver manager "$(timeout 10 nv-fabricmanager --version 2>/dev/null | sed -n 's/.*version is *: *//p')"
  report driver managed "$(systemctl is-active nvidia-fabricmanager 2>/dev/null)"
}
