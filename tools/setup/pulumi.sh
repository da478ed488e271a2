# shellcheck shell=bash
# The Pulumi CLI: from PATH, otherwise from the official release, otherwise built from its Go modules.

pulumi_oldest=3.250.0   # the oldest CLI that this project was run with, and the version that is built
# The version of the official release, and the SHA-256 of its archives.
# Source: pulumi/homebrew-tap at 51fb494f, Formula/pulumi.rb, 2026-08-20.
pulumi_official=3.259.0
pulumi_sha256_x64=94ba357acac23d01474084c4b00098dc0f7bc70ce13f34c777459254a5f718e5
pulumi_sha256_arm64=edc8327463a72160bb36cf82cf5062da9c8a244290a706d9980988e7bf486853
pulumi_host=3.79.0      # the last sdk/v3 tag that contains the Python language host
go_wanted=1.25.11       # the version in tools/pulumi/cli/go.mod
pulumi_choice=          # set by choose_pulumi: path | official | built | none
pulumi_dir=             # its folder

pulumi_built_dir() {
  local hash
  hash=$(cat "$root"/tools/pulumi/*/go.mod "$root"/tools/pulumi/*/go.sum | sha256sum | cut -c1-12)
  printf '%s/pulumi/%s-%s-%s' "$cache" "$pulumi_oldest" "$(uname -m)" "$hash"
}

# Prints the folder that contains the user's CLI: the first CLI on PATH that is new enough and was not installed by this
# project.
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

# Sets pulumi_choice and pulumi_dir to an installed CLI. Installs nothing.
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

# Succeeds if the Pulumi installer can be reached. Connects once per run, with a timeout of 5 s.
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
  flock 8 # another checkout may be building the same version
  choose_pulumi
  [[ $pulumi_choice == none ]] || return 0
  if installer_answers && install_official; then return; fi
  build_pulumi
}

# Prints the name and the SHA-256 of the official archive for this machine. Fails on unsupported processors.
official_archive() {
  case $(uname -m) in
    x86_64) echo "pulumi-v$pulumi_official-linux-x64.tar.gz $pulumi_sha256_x64" ;;
    aarch64) echo "pulumi-v$pulumi_official-linux-arm64.tar.gz $pulumi_sha256_arm64" ;;
    *) return 1 ;;
  esac
}

# Verifies the archive's hash before unpacking it.
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
  # Separate Go caches (3 GB), which are deleted after the build. After an interruption, the next build reuses them.
  export GOCACHE=$cache/go/build GOMODCACHE=$cache/go/mod GOFLAGS='-modcacherw -buildvcs=false' GOTOOLCHAIN=auto GOWORK=off
  go=$(find_go)
  echo "building with $("$go" version)"
  go_build "$go" host "$pulumi_host" github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python "$fresh"
  go_build "$go" cli "$pulumi_oldest" github.com/pulumi/pulumi/pkg/v3/cmd/pulumi "$fresh"
  # The two launcher scripts for the Python SDK are in the CLI's sdk module.
  shims=$(cd "$root/tools/pulumi/cli" && "$go" list -m -f '{{.Dir}}' github.com/pulumi/pulumi/sdk/v3)
  install -m 755 "$shims/python/cmd/pulumi-language-python-exec" "$shims/python/dist/pulumi-resource-pulumi-python" "$fresh/"
  rm -rf "$(pulumi_built_dir)"
  mv "$fresh" "$(pulumi_built_dir)"
  rm -rf "$cache/go"
}

# go_build GO MODULE VERSION PACKAGE TARGET_FOLDER
go_build() {
  local flags="-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=$3"
  # With GOGC=400, the compiler collects garbage less often, which is faster but uses more memory.
  (cd "$root/tools/pulumi/$2" && CGO_ENABLED=0 GOGC=400 nice -n 5 "$1" build -v -trimpath -ldflags "$flags" -o "$5/" "$4")
}

# Prints the path of a Go toolchain that can build the CLI. Go 1.21 and later download newer toolchains automatically.
# With an older Go, this function downloads the toolchain as a module.
find_go() {
  local have_version dir arch
  have go || die "Go is not installed, and the Pulumi installer does not respond. Fix: install Go (any version), or the Pulumi CLI $pulumi_oldest or newer"
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

# Links the chosen CLI's programs into .trainyard/bin, which env.sh adds to PATH.
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
    path) say "Pulumi CLI: $pulumi_dir/pulumi from PATH" ;;
    official) say "Pulumi CLI: official release $pulumi_official, $pulumi_dir" ;;
    built) say "Pulumi CLI: $pulumi_oldest built from its Go modules, $pulumi_dir" ;;
  esac
}
