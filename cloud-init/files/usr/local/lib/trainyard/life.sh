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

# as_trainer COMMAND...: runs a command as the job user, without a login session.
as_trainer() { setpriv --reuid=trainer --regid=trainer --init-groups -- env HOME=/home/trainer "$@"; }
