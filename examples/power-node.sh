#!/bin/bash
# An example of `power_command` (docs/platforms/hosts.md): on|off|status NODE ADDRESS
# The file /etc/power-node/NODE contains the address of the node's management controller.
set -euo pipefail
controller=$(<"/etc/power-node/$2") begun=/run/power-node-$2
power() { ipmitool -I lanplus -N 3 -R 2 -H "$controller" -U power -f /etc/power-node/password chassis power "$1"; }
case $1 in
  on) rm -f "$begun" && power on ;;
  off) [[ -e $begun ]] || touch "$begun"
    if [[ $(find "$begun" -mmin +10) ]]; then power off; else power soft; fi ;;
  status) [[ $(power status) =~ \ (on|off)$ ]] && echo "${BASH_REMATCH[1]}" ;;
esac
