#!/usr/bin/env bash
# Reports how much memory a rank can lock. With Slurm, the head runs a task on each idle node, because the limits for
# logins do not apply to processes that slurmd starts. Busy nodes are skipped, so that no job is delayed. Without a
# scheduler, ranks start over SSH, so the limit for logins applies.
# shellcheck disable=SC2016,SC2154
memlock_facts() {
  if [[ $scheduler != slurm ]]; then
    [[ $self == "$head" ]] || report memlock "$self" "$(timeout 20 runuser -l "$job_user" -c 'ulimit -l' 2>/dev/null)"
    return 0
  fi
  [[ $self == "$head" ]] || return 0
  local name partition
  local -A idle=()
  while read -r name partition; do
    # A task for a stopped slurmd would end only after a minute. Slurm reports its node as idle until the next health
    # check (run_health_check in slurmctld/ping_nodes.c of Slurm 24.11.5, read 2026-11-28). 6818 is the default port.
    timeout 2 bash -c ': >"/dev/tcp/$1/6818"' _ "${hosts[$name]:-}" 2>/dev/null || continue
    idle[$partition]+="${idle[$partition]:+,}$name"
  done < <(timeout 30 sinfo -h -N -t idle -o '%N %R' 2>/dev/null)
  for partition in "${!idle[@]}"; do
    as_job_user timeout 60 srun --job-name=yard-doctor --immediate=30 --partition="$partition" --nodelist="${idle[$partition]}" \
      --ntasks-per-node=1 --mem=16 --chdir=/ bash -c 'printf "memlock\t%s\t%s\n" "$SLURMD_NODENAME" "$(ulimit -l)"' 2>/dev/null
  done
}
