# Functions for third-party package archives. Sourced by the stages that need them.
# fabrics: gvnic gpudirect-tcpx gpudirect-tcpxo gpudirect-gib
# containers: docker enroot
# drivers: install

# mirrored TEXT: prints the text with archive addresses replaced by mirror addresses (key `mirrors` in the stack file).
mirrored() { sed -E "${TRAINYARD_MIRRORS:-}" <<<"$1"; }

# apt_key NAME KEY FINGERPRINT: sets `key` to the file of an archive's signing key. KEY is a file on this node or a URL.
# Returns 1 if the URL does not respond. FINGERPRINT: see apt_source.
apt_key() {
  local fingerprint=$3 url
  key=$2
  [[ $key != /* ]] || return 0
  key=/usr/share/keyrings/trainyard-$1.asc
  [[ ! -e $key ]] || return 0
  url=$(mirrored "$2")
  command -v curl >/dev/null || install_missing curl
  [[ $fingerprint == - ]] || command -v gpg >/dev/null || install_missing gpg
  curl -fsS --retry 5 --max-time 60 -o "$key.new" "$url" || return 1
  [[ $fingerprint == - ]] || signed_by "$fingerprint" "$key.new" || {
    rm -f "$key.new"
    fail "the key at $url does not have the fingerprint $fingerprint: no package of that archive is installed"
  }
  mv "$key.new" "$key"
}

# apt_source NAME KEY-URL FINGERPRINT ARCHIVE [OPTION...]: adds an archive whose packages are signed with the key at
# that URL. FINGERPRINT is '-' if the publisher rotates its keys. The key is then authenticated only by TLS. Returns 1
# if the archive does not respond.
apt_source() {
  local name=$1 file=/etc/apt/sources.list.d/trainyard-$1.list key archive before=$changed
  archive=$(mirrored "$4")
  apt_key "$name" "$2" "$3" || return 1
  shift 4
  put_file "$file" 0644 root:root <<<"deb [${*:+$* }signed-by=$key] $archive"
  ((changed == before)) || apt_update "$file"
}

# signed_by FINGERPRINT FILE: succeeds if the file contains exactly one key and the key has this fingerprint.
signed_by() {
  local found
  found=$(gpg --show-keys --with-colons "$2" 2>/dev/null) || return 1
  [[ $(grep -c '^pub:' <<<"$found") == 1 ]] && grep -q "^fpr:::::::::$1:" <<<"$found"
}

# fetch_package NAME URL SHA256: downloads a package file and sets `package` to its path. Fails if the server does not
# respond, or if the file has another hash. A stage can set `fix` to replace the fix in the first message.
fetch_package() {
  local url
  url=$(mirrored "$2")
  package=/run/trainyard/$1.deb
  command -v curl >/dev/null || install_missing curl
  curl -fsSL --retry 5 --max-time 300 -o "$package" "$url" ||
    fail "$url cannot be downloaded. ${fix:-Fix: check the network and \`mirrors\` in the stack file}"
  sha256sum --check --status <<<"$3  $package" || {
    rm -f "$package"
    fail "the package at $url does not have the SHA-256 hash $3: it is not installed"
  }
}
