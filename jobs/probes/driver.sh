#!/usr/bin/env bash
# The GPUs' driver, and the fabric manager that machines with NVSwitch cannot do without.
driver_facts() {
  [[ -e /sys/module/nvidia/version ]] || return 0
  report driver version "$(</sys/module/nvidia/version)"
  [[ -e /proc/driver/nvidia-nvswitch ]] || return 0
  report driver manager "$(timeout 10 nv-fabricmanager --version 2>/dev/null | sed -n 's/.*version is *: *//p')"
  report driver managed "$(systemctl is-active nvidia-fabricmanager 2>/dev/null)"
}
