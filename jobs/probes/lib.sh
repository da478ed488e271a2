#!/usr/bin/env bash
# Words that every probe uses. All files here are joined, lib.sh first and run.sh last, behind a few assignments made by
# jobs/doctor/collect.py, and run as root on one node: `self` and `self_ip` are that node, `head` is the head's name,
# `hosts` is an associative array from every host's name to its private address, `nonce` names this examination,
# `shared` is the folder on the shared file system, `job_user` owns it, `scheduler` is the cluster's (slurm or none).
# A probe is a file NAME.sh with NAME_facts (what this node can tell by itself) and, where nodes must be compared or must
# meet, NAME_peers (run when every node has told its facts) and NAME_leave (tidies up).
# shellcheck disable=SC2154,SC2034
set -uo pipefail

# report PROBE FIELD...: one line of tab-separated fields for checks.py.
report() {
  local IFS=$'\t' fields=("${@//[$'\t\n']/ }")
  printf '%s\n' "${fields[*]}"
}

# as_job_user COMMAND...: root is nobody on the shared file system.
as_job_user() { setpriv --reuid="$job_user" --regid="$job_user" --init-groups -- "$@"; }

# What the other nodes have told of themselves: `peer tcp NODE PORT` and the like become peers[tcp/NODE]=PORT.
declare -A peers=()
