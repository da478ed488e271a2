# Functions for the users and limits in Slurm's accounting. Sourced by the stages 66-people and 70-slurm.

list_users() { sacctmgr -nP show assoc format=account,user | grep -v '|$' | sort; }

# delete_user name=NAME [account=ACCOUNT]: slurmdbd deletes no user with an active job. Until then, processes of a removed
# person on other nodes can submit jobs, so these are cancelled too.
delete_user() {
  (($# > 1)) || ! systemctl is-active --quiet slurmctld.service || scancel --user="${1#name=}"
  sacctmgr -i delete user where "$@"
}

# write_accounts [FOLDER]: makes the users in Slurm's accounting equal to those in this folder of the hand-over. Does
# nothing on a head that never had people. Needs slurmdbd, but not slurmctld.
write_accounts() {
  local -x SLURM_CONF=$handover/slurm/slurm.conf
  local found row accounts=${1:-$handover/accounts} others=()
  local rows=$accounts/rows
  getent group people >/dev/null || return 0
  # The exit code is not used, because sacctmgr reports existing accounts and users as errors.
  sacctmgr -i <"$accounts/commands" || true
  found=$(list_users)
  for row in $(comm -23 - "$rows" <<<"$found"); do
    others+=("name=${row#*|}")
    ! grep -q "|${row#*|}\$" "$rows" || others[-1]+=" account=${row%|*}"
  done
  if ((${#others[@]})); then
    while read -r row; do
      # A job that ignores SIGTERM ends after KillWait (60 s).
      # shellcheck disable=SC2086  # two arguments
      wait_for 100 "sacctmgr to delete the user $row" delete_user $row
    done < <(printf '%s\n' "${others[@]}" | sort -u)
    found=$(list_users)
  fi
  [[ $found == "$(<"$rows")" ]] || fail 'the accounts in Slurm differ from the stack file; sacctmgr prints its reason above'
}

# write_limits [FOLDER]: sets all limits of people and accounts, and removes those that the hand-over does not contain.
# Needs slurmctld, which has told slurmdbd that GPUs exist.
write_limits() {
  local -x SLURM_CONF=$handover/slurm/slurm.conf
  getent group people >/dev/null || return 0
  sacctmgr -i <"${1:-$handover/accounts}/limits" || fail 'Slurm refused limits of the stack file; sacctmgr prints its reason above'
}
