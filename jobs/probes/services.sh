#!/usr/bin/env bash
# The daemons of this role.
# shellcheck disable=SC2154
services_facts() {
  local units=(munge chrony ssh) states index
  if [[ $self == "$head" ]]; then
    units+=(nfs-server mariadb slurmdbd slurmctld)
  else
    units+=(slurmd)
  fi
  mapfile -t states < <(systemctl is-active "${units[@]}" 2>/dev/null)
  for index in "${!units[@]}"; do
    report services "${units[index]}" "${states[index]:-unknown}"
  done
}
