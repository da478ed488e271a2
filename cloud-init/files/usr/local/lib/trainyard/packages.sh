# Packages of other archives than the distribution's; sourced by the stages that need them.
# fabrics: gvnic gpudirect-tcpx gpudirect-tcpxo gpudirect-gib
# containers: docker enroot

# apt_source NAME KEY-URL FINGERPRINT ARCHIVE [OPTION...]: an archive whose packages are signed with the key at that
# address. FINGERPRINT '-': the publisher changes its keys, so only the connection vouches for them. Returns 1 if the
# archive does not answer.
apt_source() {
  local name=$1 key=/usr/share/keyrings/trainyard-$1.asc fingerprint=$3 archive=$4 before=$changed
  if [[ ! -e $key ]]; then
    [[ $fingerprint == - ]] || command -v gpg >/dev/null || installed gpg
    curl -fsS --retry 5 --max-time 60 -o "$key.new" "$2" || return 1
    [[ $fingerprint == - ]] || signed_by "$fingerprint" "$key.new" || {
      rm -f "$key.new"
      fail "the key at $2 is not $fingerprint: nothing of that archive is installed"
    }
    mv "$key.new" "$key"
  fi
  shift 4
  put_file "/etc/apt/sources.list.d/trainyard-$name.list" 0644 root:root <<<"deb [${*:+$* }signed-by=$key] $archive"
  ((changed == before)) || apt_update
}

# signed_by FINGERPRINT FILE: the file has this one key.
signed_by() {
  local found
  found=$(gpg --show-keys --with-colons "$2" 2>/dev/null) || return 1
  [[ $(grep -c '^pub:' <<<"$found") == 1 ]] && grep -q "^fpr:::::::::$1:" <<<"$found"
}
