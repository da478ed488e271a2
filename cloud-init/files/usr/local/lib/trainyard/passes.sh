# Bootstrap functions for passes that run the stages from a bundle: which stages a pass skips, and how a pass ends.
#
# A pass after a hand-over runs the first stage that has changed and all later stages, because a stage can read files that
# an earlier stage writes. A stage with "# later stages: unaffected" writes no such file. After a boot, a failure or
# `systemctl restart trainyard-bootstrap`, a pass skips only stages with "# runs: once".

readonly pass_inputs=/run/trainyard/inputs
shared='' seen='' repeats=0 received=() readers=()

# begin_pass [--again]: discards the inputs of earlier passes, unless --again is given or the pass follows a hand-over.
begin_pass() {
  [[ ${1:-} == --again || -e /run/trainyard/handed-over ]] || rm -rf "$pass_inputs"
  rm -f /run/trainyard/handed-over
  [[ -d $pass_inputs ]] || mkdir "$pass_inputs"
}

# read_shared: sets `shared` to the hash of the files that every stage can read: birth.env and the bundle without the
# stages, their list, the parameters for other kinds of nodes, and the bytecode that Python writes into the bundle. The
# paths are relative, because a bundle's path contains its digest.
read_shared() {
  local own=./kinds/${kind##*/}
  [[ -z $shared ]] || return 0
  shared=$(
    cd "$lib" || exit
    find . \( -path ./stages -o -path "$own/stages" -o -name __pycache__ -o \
      -path './kinds/*' ! -path "$own" ! -path "$own/*" \) -prune -o -type f -print0 |
      sort -z | xargs -0 sha256sum /etc/trainyard/birth.env | sha256sum
  )
}

# read_received: sets `received` to the hashes and names of the files in the hand-over, except the digest of its bundle.
read_received() {
  local complete=''
  [[ ! -e $state/handover/complete ]] || complete=$(<"$state/handover/complete")
  [[ $complete != "$seen" ]] || return 0
  seen=$complete
  mapfile -t received < <(
    cd "$state/handover" || exit
    find . -type f ! -name complete ! -name bundle.sha256 -print0 | sort -z | xargs -0 sha256sum
  )
}

# read_readers: sets `readers` to a line "STAGE:$handover/NAME" for each place where a stage names a file or folder of the
# hand-over.
read_readers() {
  # shellcheck disable=SC2016
  ((${#readers[@]})) || mapfile -t readers < <(cd "$lib/stages" && exec grep -oH '$handover/[a-zA-Z0-9_./-]*' -- *)
}

# read_own_part NAME: adds the hashes of the files and folders that the stage names to `stamp`.
read_own_part() {
  local reader line
  read_received
  read_readers
  for reader in "${readers[@]}"; do
    [[ $reader == "$1:"* ]] || continue
    for line in "${received[@]}"; do
      # shellcheck disable=SC2016
      [[ $line != *"  ./${reader#*'$handover/'}"* ]] || stamp+=$line
    done
  done
}

# is_unchanged NAME: succeeds if the stage and all stages before it have the same inputs as in their last successful
# run. `text` must contain the stage's text. Sets `stamp` to the stage's inputs. A stage with "# runs: every pass"
# installs the hand-over and records that it has been read. If that stage is skipped because its part of the newest
# hand-over has not changed, this function records it instead.
is_unchanged() {
  read_shared
  stamp=$text$shared
  read_own_part "$1"
  if ((repeats)) || [[ ! -e $pass_inputs/$1 || $(<"$pass_inputs/$1") != "$stamp" ]]; then
    [[ $text == *$'\n# later stages: unaffected\n'* ]] || repeats=1
    return 1
  fi
  [[ $text != *$'\n# runs: every pass\n'* || -z $seen ]] || printf '%s\n' "$seen" >/run/trainyard/handover
}

# has_news: succeeds if a different bundle is active, or if 60-munge has not read the newest hand-over.
has_news() {
  local current='' applied=''
  [[ ! -e $state/handover/complete ]] || current=$(<"$state/handover/complete")
  [[ ! -e /run/trainyard/handover ]] || applied=$(</run/trainyard/handover)
  [[ ! /usr/local/lib/trainyard -ef $lib || $current != "$applied" ]]
}

# prune: deletes bundles except the active bundle, the previous bundle and the files from user-data.
prune() {
  local path previous
  previous=$(readlink "$state/bundles/previous" || true)
  for path in "$state"/bundles/*; do
    case ${path%.tar} in
      "$lib" | "$previous" | */birth | */previous | */new*) ;;
      *) rm -rf "$path" ;;
    esac
  done
}

# rules_are_loaded: succeeds if the kernel has the rules of 12-metadata and 62-ports, which another program could remove.
rules_are_loaded() {
  local tables
  tables=$(nft list tables)
  [[ $tables == *trainyard_metadata* && $tables == *trainyard_ports* ]]
}

# finish: if no new bundle or hand-over has arrived during the pass, reports that the node is ready, and exits. Fails if
# the node has lost its network rules, which only a pass of all stages loads again.
finish() {
  exec 8>/run/trainyard/handover.lock
  flock 8
  if ! has_news; then
    if ! rules_are_loaded; then
      echo 'nft list tables: a table of the network rules is missing. Fix: sudo systemctl restart trainyard-bootstrap' |
        tee "$logs/rules.log" >/run/trainyard/failed-command
      failed rules 1
      exit 1
    fi
    prune
    status ready "" 0
    console "trainyard-status: $TRAINYARD_NODE ready after $uptime s"
    exit 0
  fi
  exec 8>&-
}

