#!/usr/bin/env bash
# On the head: how much memory a task started by Slurm may lock. An ssh login tells nothing of it: slurmd is a service,
# and limits.conf does not reach services. Only idle nodes are asked; nobody's job shall wait for this.
# shellcheck disable=SC2154
memlock_facts() {
  [[ $self == "$head" ]] || return 0
  local name partition
  local -A idle=()
  while read -r name partition; do
    idle[$partition]+="${idle[$partition]:+,}$name"
  done < <(timeout 30 sinfo -h -N -t idle -o '%N %R' 2>/dev/null)
  for partition in "${!idle[@]}"; do
    # shellcheck disable=SC2016
    as_job_user timeout 60 srun --immediate=30 --partition="$partition" --nodelist="${idle[$partition]}" \
      --ntasks-per-node=1 --mem=16 --chdir=/ bash -c 'printf "memlock\t%s\t%s\n" "$SLURMD_NODENAME" "$(ulimit -l)"' 2>/dev/null
  done
}
