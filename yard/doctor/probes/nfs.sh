#!/usr/bin/env bash
# Writes a file to the shared file system, and reads the other hosts' files in the second phase.
# shellcheck disable=SC2154
nfs_facts() {
  local message code=0
  # shellcheck disable=SC2016
  message=$(as_job_user timeout 30 bash -c 'umask 022; mkdir -p "$1" && echo "$2" >"$1/$2"' _ "$shared/.doctor-$nonce" "$self" 2>&1) ||
    code=$?
  if ((code == 124)); then message='no answer within 30 s'; fi
  report nfs write "$code" "$message"
}

# Only files from hosts that reported a successful write are read, so that missing hosts cause no delay.
nfs_peers() {
  local key names=("$self")
  for key in "${!peers[@]}"; do
    [[ $key != nfs/* ]] || names+=("${key#nfs/}")
  done
  # shellcheck disable=SC2016
  as_job_user timeout 30 bash -c '
    folder=$1
    shift
    for name; do
      line=
      # NFS caches attributes for several seconds.
      for _ in 1 2 3 4 5; do
        if read -r line <"$folder/$name"; then break; fi
        sleep 1
      done 2>/dev/null
      printf "nfs\t%s\t%s\n" "$name" "$line"
    done' _ "$shared/.doctor-$nonce" "${names[@]}"
}

nfs_leave() {
  # shellcheck disable=SC2016
  as_job_user timeout 30 bash -c 'rm -f "$1/$2"; rmdir "$1" 2>/dev/null' _ "$shared/.doctor-$nonce" "$self" || true
}
