#!/usr/bin/env bash
# Reports the state of the services for this host's role.
# shellcheck disable=SC2154
services_facts() {
  local units=(ssh) states index
  # On an existing host, the owner chooses the time service.
  [[ -d /var/lib/trainyard/borrowed ]] || units+=(chrony)
  [[ $scheduler != slurm ]] || units+=(munge)
  if [[ $self == "$head" ]]; then
    units+=(nfs-server)
    [[ $scheduler != slurm ]] || units+=(mariadb slurmdbd slurmctld)
  elif [[ $scheduler == slurm ]]; then
    units+=(slurmd)
  fi
  mapfile -t states < <(systemctl is-active "${units[@]}" 2>/dev/null)
  for index in "${!units[@]}"; do
    report services "${units[index]}" "${states[index]:-unknown}"
  done
}
