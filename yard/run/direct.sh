#!/usr/bin/env bash
# The last part of yard.sh on a cluster without a scheduler, where the runner executes parts of a job's script on nodes.
# shellcheck disable=SC2034,SC2317,SC2329
readonly job_script=job.sh

# The runner has set RANK, LOCAL_RANK and NODE_RANK.
find_place() { :; }

case ${1:-} in
  task | begin | lead | listen | leave) "$1" ;;
  *)
    say "'${1:-}' is not a part of a job's script; submit jobs with \`yard submit\`" >&2
    exit 2
    ;;
esac
