#!/bin/bash
# Install what the development cluster needs, on Debian or Ubuntu: Slurm, munge, and MariaDB for accounting.
# As root, or through sudo when it asks for no password; otherwise it says what to type.
#
#   install.sh           everything
#   install.sh --check   installs nothing; exit code 0 when nothing is missing, 1 and the list otherwise
#
# With OUTERLOOP_DEV_ACCOUNTING=none, what accounting needs is not missed.
set -eu

PACKAGES="slurm-wlm slurmdbd slurm-wlm-mysql-plugin munge mariadb-server"
# What up.sh really runs. MariaDB's server brings mariadb-install-db.
PROGRAMS="sbatch squeue sacct scancel scontrol sinfo sacctmgr slurmctld slurmd slurmstepd munged"
[ "${OUTERLOOP_DEV_ACCOUNTING:-dbd}" = none ] || PROGRAMS="$PROGRAMS slurmdbd mariadbd mariadb-install-db"

missing() {
  local program
  for program in $PROGRAMS; do
    # OUTERLOOP_DEV_SLURM as in up.sh: a Slurm of one's own in a place of its own. Red Hat has mariadbd in libexec.
    PATH=${OUTERLOOP_DEV_SLURM:+$OUTERLOOP_DEV_SLURM/bin:$OUTERLOOP_DEV_SLURM/sbin:}$PATH:/usr/sbin:/sbin:/usr/libexec \
      command -v "$program" >/dev/null || printf '%s ' "$program"
  done
}

lack=$(missing)
[ -n "$lack" ] || exit 0
if [ "${1:-}" = --check ]; then
  echo "missing: $lack" >&2
  exit 1
fi
if ! command -v apt-get >/dev/null; then
  echo "install.sh: knows Debian and Ubuntu only; install these programs by hand: $lack" >&2
  exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
  as_root=
elif sudo -n true 2>/dev/null; then
  as_root=sudo
else
  echo "install.sh: needs root once. Type:" >&2
  echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends $PACKAGES" >&2
  exit 1
fi

# The packages' own services are not wanted: a policy of "no" keeps them from starting where one can be set.
policy=/usr/sbin/policy-rc.d
ours=
if [ ! -e "$policy" ]; then
  ours=1
  printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
  $as_root chmod 755 "$policy"
fi
cleanup() { [ -z "$ours" ] || $as_root rm -f "$policy"; }
trap cleanup EXIT

$as_root apt-get update -qq
# shellcheck disable=SC2086  # a list of package names
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $PACKAGES >/dev/null

lack=$(missing)
if [ -n "$lack" ]; then
  echo "install.sh: installed $PACKAGES, but these programs are still missing: $lack" >&2
  exit 1
fi
