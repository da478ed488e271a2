#!/usr/bin/env bash
# Reports the boot id and the bootstrap's status file.
status_facts() {
  report status boot_id "$(</proc/sys/kernel/random/boot_id)"
  [[ ! -r /var/lib/trainyard/status.json ]] || report status json "$(</var/lib/trainyard/status.json)"
}
