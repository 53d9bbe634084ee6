#!/bin/bash
# Unpack the Slurm of another Debian suite beside this machine's own, to test against several releases.
#
#   get-slurm.sh SUITE DIR        (bookworm 22.05, trixie 24.11, forky 26.05)
#   OUTERLOOP_DEV_PREFIX=DIR up.sh
#
# Needs Debian's apt and dpkg-deb; neither root nor a container: apt resolves and downloads into a state folder
# of its own, dpkg-deb unpacks, and up.sh runs the programs through the loader that comes with them.
# Files come from the Debian mirror that this machine's apt already uses.
set -eu

if [ $# -ne 2 ]; then
  echo "usage: get-slurm.sh SUITE DIR" >&2
  exit 2
fi
suite=$1
mkdir -p "$2"
root=$(cd "$2" && pwd)
done_mark=$root/.complete
[ ! -e "$done_mark" ] || exit 0

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ ! -r "$keyring" ]; then
  echo "get-slurm.sh: no $keyring on this machine; it comes with the package debian-archive-keyring" >&2
  exit 1
fi
# shellcheck disable=SC2016  # apt's own placeholder
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | head -n 1)
if [ -z "$mirror" ]; then
  echo "get-slurm.sh: this machine's apt knows no Debian mirror" >&2
  exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/get-slurm.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,etc}
: >"$work/status" # an empty system: everything counts as not installed
echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/etc/sources.list"

architecture=$(dpkg --print-architecture)
apt() {
  apt-get -qq \
    -o Dir::State="$work" -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" \
    -o Dir::Cache="$work/cache" \
    -o Dir::Etc::sourcelist="$work/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
    -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" \
    -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 -o Acquire::Languages=none \
    "$@"
}

apt update
# Of everything that Slurm depends on, only programs and shared libraries are wanted.
packages=$(apt --no-install-recommends -s install slurm-wlm slurmdbd slurm-wlm-mysql-plugin |
  sed -n 's/^Inst \([^ ]*\) .*/\1/p' |
  grep -E '^(slurm|lib|munge)' |
  grep -Ev '^(libperl|libpython|libsystemd-shared|libpam|libdevmapper)')
[ -n "$packages" ] || { echo "get-slurm.sh: suite $suite has no slurm-wlm" >&2; exit 1; }
# shellcheck disable=SC2086  # a list of package names
(cd "$work/cache/archives" && apt download $packages)
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb -x "$package" "$root"
done
rm -rf "$root"/usr/share/{doc,man,locale}
touch "$done_mark"
