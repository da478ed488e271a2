#!/usr/bin/env bash
# Functions that every probe uses. yard/doctor/collect.py joins assignments and all files in this folder into one
# script, lib.sh first and run.sh last. The script runs as root on each host. Variables:
#   self, self_ip  name and private address of this host
#   head           name of the head
#   hosts          associative array from host names to private addresses
#   nonce          id for this run of `yard doctor`
#   home           folder that the workers mount from the head: /home or the job user's home
#   shared         folder on the shared file system
#   job_user       owner of that folder
#   scheduler      slurm or none
# A probe is a file NAME.sh. Its function NAME_facts reports facts about this host. The optional function NAME_peers
# runs after all hosts have reported their facts. The optional function NAME_leave removes the probe's files
# and ends its processes.
# shellcheck disable=SC2154,SC2034
set -uo pipefail

# report PROBE FIELD...: prints one line of tab-separated fields for yard/doctor/findings.py.
report() {
  local IFS=$'\t' fields=("${@//[$'\t\n']/ }")
  printf '%s\n' "${fields[*]}"
}

# as_job_user COMMAND...: runs a command as the job user. The NFS server maps root to an unprivileged user.
as_job_user() { setpriv --reuid="$job_user" --regid="$job_user" --init-groups -- "$@"; }

# Facts from the other hosts: the line `peer tcp HOST PORT` becomes peers[tcp/HOST]=PORT.
declare -A peers=()
