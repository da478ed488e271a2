# Replaces package archives with the mirrors from the stack file. Sourced by 20-apt.

# The original files are kept here, so that a later change of the mirrors starts from them.
readonly kept=/var/lib/trainyard/apt-sources

# use_mirrors: replaces the addresses in the node's apt sources. The addresses of a distribution's archives differ
# between images and are replaced in the distribution's own files only. These files are sources.list, the file that
# cloud-init generates (cc_apt_configure.py in cloud-init 25.1.4), and the lists in Debian's cloud images, whose sources
# have addresses such as mirror+file:/etc/apt/mirrors/debian.list (output of apt on Debian 12 and 13, read 2026-11-22).
use_mirrors() {
  local file old mirrors
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} /etc/apt/mirrors/*.list; do
    [[ -e $file && $file != */trainyard-* ]] || continue
    mirrors=${TRAINYARD_MIRRORS:-}
    case $file in
      */apt/sources.list | */debian.sources | */ubuntu.sources | */apt/mirrors/debian*.list)
        mirrors+=";${TRAINYARD_DISTRIBUTION_MIRRORS:-}"
        ;;
    esac
    old=$kept/${file#/etc/apt/}
    if [[ ! -e $old ]]; then
      ! sed -E "$mirrors" "$file" | cmp -s - "$file" || continue
      install -D "$file" "$old"
    fi
    put_file "$file" 0644 root:root < <(sed -E "$mirrors" "$old")
  done
}
