# A function for the users in Slurm's accounting. Sourced by the stages 66-people and 70-slurm.

list_users() { sacctmgr -nP show assoc format=account,user | grep -v '|$' | sort; }

# other_users ROWS: prints sacctmgr's arguments for the users, or users of accounts, that are not in the file.
other_users() {
  local row user
  for row in $(comm -23 <(list_users) "$1"); do
    user=${row#*|}
    if grep -q "|$user\$" "$1"; then echo "name=$user account=${row%|*}"; else echo "name=$user"; fi
  done | sort -u
}

# write_accounts [FOLDER]: makes the users in Slurm's accounting equal to those in this folder of the hand-over. Does
# nothing on a head that never had people. Needs slurmdbd, but not slurmctld. slurmdbd deletes no user with an active job.
write_accounts() {
  local -x SLURM_CONF=$handover/slurm/slurm.conf
  local user accounts=${1:-$handover/accounts}
  local rows=$accounts/rows
  getent group people >/dev/null || return 0
  # The exit code is not used, because sacctmgr reports existing accounts and users as errors.
  sacctmgr -i <"$accounts/commands" || true
  while read -r user; do
    # shellcheck disable=SC2086  # two arguments
    wait_for 20 "sacctmgr to delete the user $user" sacctmgr -i delete user where $user
  done < <(other_users "$rows")
  cmp -s <(list_users) "$rows" || fail 'the accounts in Slurm differ from the stack file; sacctmgr prints its reason above'
}
