#!/bin/bash
# Take down the cluster of OUTERLOOP_DEV_DIR (default /tmp/outerloop-dev-$UID/c1).
#
#   down.sh            stops the daemons. Jobs that run go on, as they do on a cluster whose controller is
#                      restarted, and the next up.sh finds them again.
#   down.sh --purge    also kills every job process, daemonized ones too, and removes the folder.
set -eu
. "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/lib.sh"

PURGE=
case ${1:-} in
'') ;;
--purge) PURGE=1 ;;
*) die "usage: down.sh [--purge]" ;;
esac
[ -z "${SLURM_JOB_ID:-}" ] || die "not from inside a Slurm job"
[ -d "$DIR" ] || exit 0
# --purge removes the folder: only one that up.sh made.
[ -f "$DIR/lock" ] && [ -d "$DIR/etc" ] || die "$DIR is not the folder of a development cluster"

# A clean stop of a Slurm daemon takes about two seconds; state that is thrown away needs none.
SIGNAL=${PURGE:+KILL}
SIGNAL=${SIGNAL:-TERM}

# stop NAME...: signal the daemons of run/NAME.pid together, wait ten seconds, kill what is left.
stop() {
  local name pid left pids=()
  for name in "$@"; do
    alive "$name" || continue
    pid=$(cat "$DIR/run/$name.pid")
    kill "-$SIGNAL" "$pid" 2>/dev/null || continue
    kill -CONT "$pid" 2>/dev/null || true # a stopped process never acts on TERM
    pids+=("$pid")
  done
  for _ in $(seq 300); do
    left=
    for pid in ${pids[@]+"${pids[@]}"}; do running "$pid" && left=1; done
    [ -n "$left" ] || return 0
    sleep 0.03
  done
  for pid in ${pids[@]+"${pids[@]}"}; do kill -KILL "$pid" 2>/dev/null || true; done
}

slurmd_names() {
  local file
  for file in "$DIR"/run/slurmd-*.pid; do
    [ -e "$file" ] && basename "$file" .pid
  done
  return 0
}

# step_daemons: pids of this cluster's slurmstepds. They outlive slurmd by design and overwrite both arguments
# and environment with their title, so they are known by the socket that they hold below our spool folder.
step_daemons() {
  local inodes process
  inodes=$(awk -v spool="$DIR/spool/" 'index($8, spool) == 1 { print $7 }' /proc/net/unix | sort -u | paste -sd'|' -)
  [ -n "$inodes" ] || return 0
  for process in /proc/[0-9]*; do
    grep -qsE '^slurmstepd|^ld-linux' "$process/comm" || continue
    # shellcheck disable=SC2012  # socket:[N] link targets, not file names
    ls -l "$process/fd" 2>/dev/null | grep -qE "socket:\[($inodes)\]" && basename "$process"
  done
  return 0
}

descendants() {
  local child
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null || true); do
    echo "$child"
    descendants "$child"
  done
}

# job_processes: also those that left their session, by what Slurm put into the environment.
job_processes() {
  local process
  for process in /proc/[0-9]*; do
    grep -qszFx "SLURM_CONF=$CONF" "$process/environ" 2>/dev/null || continue
    grep -qsz '^SLURM_JOB_ID=' "$process/environ" 2>/dev/null || continue
    basename "$process"
  done
  return 0
}

stop slurmctld # first, so that nothing new starts
if [ -n "$PURGE" ]; then
  # Twice: a process may fork between the look and the kill.
  for _ in 1 2; do
    doomed=$(for pid in $(step_daemons); do
      echo "$pid"
      descendants "$pid"
    done
    job_processes)
    for pid in $doomed; do kill -KILL "$pid" 2>/dev/null || true; done
  done
fi
# shellcheck disable=SC2046  # names without blanks
stop $(slurmd_names) slurmdbd munged
stop mariadb
rm -f "$DIR"/run/*.pid "$DIR"/run/*.sock*
if [ -n "$PURGE" ]; then
  if [ -s "$DIR/etc/port" ]; then rm -f "/tmp/outerloop-dev-$(id -u)/ports/$(cat "$DIR/etc/port")"; fi
  rm -rf "$DIR"
fi
