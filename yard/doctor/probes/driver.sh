#!/usr/bin/env bash
# Reports the GPU driver version, and how RDMA cards can access GPU memory.
driver_facts() {
  [[ -e /sys/module/nvidia/version ]] || return 0
  report driver version "$(</sys/module/nvidia/version)"
  # GPUDirect RDMA needs either the module nvidia-peermem or DMA-BUF, which only the open kernel modules support.
  [[ ! -e /sys/module/nvidia_peermem ]] || report driver direct nvidia-peermem
  ! grep -qs 'Open Kernel Module' /proc/driver/nvidia/version || report driver direct dma-buf
}
