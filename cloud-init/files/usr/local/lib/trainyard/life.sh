# Functions for the stages that are not in user-data. Sourced by stage.sh.

# put_secret PATH OWNER:GROUP FROM: copies a binary file and makes it readable only by its owner.
put_secret() {
  local path=$1 owner=$2 from=$3
  ! cmp -s "$from" "$path" || return 0
  remember "$path"
  install -D -m 0400 -o "${owner%:*}" -g "${owner#*:}" "$from" "$path"
  changed=$((changed + 1))
}

# listens HOST PORT: succeeds if a TCP connection can be opened.
listens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# is_empty DISK: succeeds if blkid finds no known content. blkid exits with 2 both for an empty disk and for an
# unreadable disk, so both ends of the disk are read first. The stage fails if the disk cannot be read.
is_empty() {
  local code=0 mib
  mib=$(($(blockdev --getsize64 "$1") / 1048576))
  dd if="$1" of=/dev/null bs=1M count=1 status=none &&
    dd if="$1" of=/dev/null bs=1M count=1 skip=$((mib > 0 ? mib - 1 : 0)) status=none ||
    fail "the disk $1 cannot be read, so it is not formatted"
  blkid -p "$1" || code=$?
  ((code == 0 || code == 2)) || fail "blkid cannot identify the content of the disk $1 (exit $code), so it is not formatted"
  ((code == 2))
}

# nfs_ran_before: succeeds on an existing host whose owner already ran an NFS server.
nfs_ran_before() { is_existing_host && grep -Eqs '^unit:nfs-server\.service[[:space:]].*active=yes' "$ledger/notes"; }

# as_user NAME GROUP HOME COMMAND...: runs a command as a user, without a login session. Ends it after 150 seconds
# with exit code 124, because a named pipe in the user's home would block it forever. The time is longer than the grace
# period after a restart of the NFS server.
as_user() { timeout --kill-after=5 150 setpriv --reuid="$1" --regid="$2" --init-groups -- env HOME="$3" "${@:4}"; }

# as_trainer COMMAND...: runs a command as the job user, without a login session.
as_trainer() { as_user trainer trainer /home/trainer "$@"; }

# rank_key NAME GROUP HOME: creates, in a user's shared home, the SSH key with which ranks start other ranks. Runs as the
# user, because the home may contain links to files that only root may write.
rank_key() {
  as_user "$1" "$2" "$3" bash -euc '
    umask 077
    mkdir -p ~/.ssh
    # An interrupted head can leave an empty file, so the key is first written under a different name.
    cd ~/.ssh
    [[ ! -s id_ed25519 ]] || exit 0
    rm -f new_key new_key.pub
    ssh-keygen -q -t ed25519 -N "" -C "$1" -f new_key
    cat new_key.pub >>authorized_keys
    sync new_key new_key.pub authorized_keys
    mv new_key.pub id_ed25519.pub
    mv new_key id_ed25519' - "$1@$TRAINYARD_CLUSTER"
}

# check_folder PATH OWNER: fails unless the path is a folder in which only its owner can write. Every user can create
# files in /shared.
check_folder() {
  local found
  found=$(stat -c '%F %U %A' "$1")
  [[ $found == "directory $2 d"????-??-? ]] ||
    fail "$1 must be a folder of $2 in which nobody else can write, but it is: $found. Fix:" \
      "sudo mv $1 $1.old && sudo systemctl restart trainyard-bootstrap"
}
