#!/usr/bin/env bash
# Reports free space and free inodes in the file systems that jobs write to.
# shellcheck disable=SC2154
disk_facts() {
  local path size free files spare
  for path in / /tmp /home "${shared%/jobs}"; do
    read -r size free files spare < <(timeout 20 stat -f -c '%b %a %c %d' "$path" 2>/dev/null) || continue
    report disk "$path" "$((size * $(stat -f -c %S "$path") / 1048576))" \
      "$((free * $(stat -f -c %S "$path") / 1048576))" "$files" "$spare"
  done
}
