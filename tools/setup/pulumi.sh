# shellcheck shell=bash
# The Pulumi CLI: the one on PATH, else the official release, else built from its Go modules.

pulumi_oldest=3.250.0   # the oldest CLI this project was run with; also the one built here
# The official release, and the SHA-256 of its archives.
# Source: pulumi/homebrew-tap at 51fb494f, Formula/pulumi.rb, 2026-08-20.
pulumi_official=3.259.0
pulumi_sha256_x64=94ba357acac23d01474084c4b00098dc0f7bc70ce13f34c777459254a5f718e5
pulumi_sha256_arm64=edc8327463a72160bb36cf82cf5062da9c8a244290a706d9980988e7bf486853
pulumi_host=3.79.0      # the last sdk/v3 tag with the Python language host inside
go_wanted=1.25.11       # what tools/pulumi/cli/go.mod asks for
pulumi_choice=          # set by choose_pulumi: path | official | built | none
pulumi_dir=             # its folder

pulumi_built_dir() {
  local hash
  hash=$(cat "$root"/tools/pulumi/*/go.mod "$root"/tools/pulumi/*/go.sum | sha256sum | cut -c1-12)
  printf '%s/pulumi/%s-%s-%s' "$cache" "$pulumi_oldest" "$(uname -m)" "$hash"
}

# The user's own CLI: on PATH, not one of this project's, and new enough. Prints the folder it really lies in.
pulumi_on_path() {
  local found
  while read -r found; do
    found=$(readlink -f "$found")
    [[ $found != "$cache"/* ]] || continue
    version_at_least "$(PULUMI_SKIP_UPDATE_CHECK=true "$found" version 2>/dev/null | sed 's/^v//')" "$pulumi_oldest" || continue
    dirname "$found"
    return
  done < <(type -aP pulumi)
  return 1
}

# What is here already, without installing anything.
choose_pulumi() {
  if pulumi_dir=$(pulumi_on_path); then
    pulumi_choice=path
  elif [[ -x $cache/pulumi/$pulumi_official/bin/pulumi ]]; then
    pulumi_choice=official pulumi_dir=$cache/pulumi/$pulumi_official/bin
  elif [[ -x $(pulumi_built_dir)/pulumi ]]; then
    pulumi_choice=built pulumi_dir=$(pulumi_built_dir)
  else
    pulumi_choice=none pulumi_dir=
  fi
}

needs_go() { [[ $pulumi_choice == none ]] && ! installer_answers; }

# Asked once a run; a network that swallows packets costs 5 s here, not a time-out each.
installer_answers() {
  if [[ -z ${installer_answer:-} ]]; then
    installer_answer=no
    have curl && curl -fsS --connect-timeout 5 --max-time 15 -o /dev/null https://get.pulumi.com 2>/dev/null && installer_answer=yes
  fi
  [[ $installer_answer == yes ]]
}

install_pulumi() {
  mkdir -p "$cache/pulumi"
  exec 8>"$cache/pulumi/lock"
  flock 8 # another checkout may be building the same thing
  choose_pulumi
  [[ $pulumi_choice == none ]] || return 0
  if installer_answers && install_official; then return; fi
  build_pulumi
}

# Prints the name and the SHA-256 of the official archive for this machine. Fails for other processors.
official_archive() {
  case $(uname -m) in
    x86_64) echo "pulumi-v$pulumi_official-linux-x64.tar.gz $pulumi_sha256_x64" ;;
    aarch64) echo "pulumi-v$pulumi_official-linux-arm64.tar.gz $pulumi_sha256_arm64" ;;
    *) return 1 ;;
  esac
}

# Nothing of the archive runs before its hash was compared.
install_official() {
  local fresh=$cache/pulumi/.official.$$ archive hash
  read -r archive hash < <(official_archive) || return 1
  mkdir -p "$fresh/bin"
  if curl -fsSL --max-time 600 "https://get.pulumi.com/releases/sdk/$archive" -o "$fresh/$archive" &&
    sha256sum --check --quiet <<<"$hash  $fresh/$archive" &&
    tar -xzf "$fresh/$archive" -C "$fresh/bin" --strip-components=1 --no-same-owner; then
    rm "$fresh/$archive"
    mv "$fresh" "$cache/pulumi/$pulumi_official"
    return
  fi
  rm -rf "$fresh"
  echo "the official Pulumi CLI $pulumi_official could not be downloaded, or its SHA-256 differs from tools/setup/pulumi.sh" >&2
  return 1
}

build_pulumi() {
  local go fresh shims
  fresh=$(pulumi_built_dir).new
  rm -rf "$fresh"
  mkdir -p "$fresh"
  # Go's own caches, kept apart so that 3 GB can go once the build is done; an interrupted build finds them again.
  export GOCACHE=$cache/go/build GOMODCACHE=$cache/go/mod GOFLAGS='-modcacherw -buildvcs=false' GOTOOLCHAIN=auto GOWORK=off
  go=$(find_go)
  echo "building with $("$go" version)"
  go_build "$go" host "$pulumi_host" github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python "$fresh"
  go_build "$go" cli "$pulumi_oldest" github.com/pulumi/pulumi/pkg/v3/cmd/pulumi "$fresh"
  # The Python SDK's two launcher scripts come with the sdk module that the CLI was built from.
  shims=$(cd "$root/tools/pulumi/cli" && "$go" list -m -f '{{.Dir}}' github.com/pulumi/pulumi/sdk/v3)
  install -m 755 "$shims/python/cmd/pulumi-language-python-exec" "$shims/python/dist/pulumi-resource-pulumi-python" "$fresh/"
  rm -rf "$(pulumi_built_dir)"
  mv "$fresh" "$(pulumi_built_dir)"
  rm -rf "$cache/go"
}

# go_build GO MODULE VERSION PACKAGE TARGET_FOLDER
go_build() {
  local flags="-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=$3"
  # GOGC: less work for the compiler's collector, for memory that the virtual machines need later anyway.
  (cd "$root/tools/pulumi/$2" && CGO_ENABLED=0 GOGC=400 nice -n 5 "$1" build -v -trimpath -ldflags "$flags" -o "$5/" "$4")
}

# Prints a Go that can build the CLI. From 1.21 on, Go fetches a newer toolchain by itself; an older one can still
# fetch it as the module that it is.
find_go() {
  local have_version dir arch
  have go || die "no Go here, and the Pulumi installer does not answer. Fix: install Go (any version) or the Pulumi CLI $pulumi_oldest or newer"
  have_version=$(cd / && GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//')
  if version_at_least "$have_version" 1.21; then
    command -v go
    return
  fi
  arch=$(go env GOARCH)
  dir=$(cd / && go mod download -json "golang.org/toolchain@v0.0.1-go$go_wanted.linux-$arch" | sed -n 's/^\s*"Dir": "\(.*\)",\?$/\1/p')
  chmod +x "$dir"/bin/* "$dir"/pkg/tool/*/*
  printf '%s/bin/go' "$dir"
}

# .trainyard/bin names the chosen CLI's programs, so that the choice holds wherever env.sh is sourced.
link_pulumi() {
  local program
  rm -rf "$state/bin.new"
  mkdir -p "$state/bin.new"
  for program in "$pulumi_dir"/pulumi "$pulumi_dir"/pulumi-*; do
    [[ ! -e $program ]] || ln -s "$program" "$state/bin.new/"
  done
}

describe_pulumi() {
  case $pulumi_choice in
    path) say "Pulumi CLI: the one on PATH, $pulumi_dir/pulumi" ;;
    official) say "Pulumi CLI: the official release $pulumi_official, $pulumi_dir" ;;
    built) say "Pulumi CLI: $pulumi_oldest built from its Go modules, $pulumi_dir" ;;
  esac
}
