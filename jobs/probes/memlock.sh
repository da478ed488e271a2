#!/usr/bin/env bash
# How much memory a rank may lock. Under Slurm the head asks by a task: an ssh login tells nothing of it, since slurmd is
# a service and limits.conf does not reach services. Only idle nodes are asked; nobody's job shall wait for this.
# Without a scheduler ranks come by ssh, and a login is what counts.
# shellcheck disable=SC2154
memlock_facts() {
  if [[ $scheduler != slurm ]]; then
    [[ $self == "$head" ]] || report memlock "$self" "$(timeout 20 runuser -l "$job_user" -c 'ulimit -l' 2>/dev/null)"
    return 0
  fi
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
