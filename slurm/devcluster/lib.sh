# Shared by up.sh and down.sh: where a development cluster lives and how its processes are told apart.
# Sourced, never run. Needs bash and /proc; no root, no systemd, no ps.
# shellcheck shell=bash

DIR=${OUTERLOOP_DEV_DIR:-/tmp/outerloop-dev-$(id -u)/c1}
case $DIR in
/*) ;;
*) DIR=$PWD/$DIR ;;
esac
DIR=${DIR%/}
CONF=$DIR/etc/slurm.conf

say() { printf 'devcluster: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# running PID: a zombie that a slow init has not reaped yet counts as gone, which `kill -0` would not see.
running() { [ -r "/proc/$1/status" ] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"; }

# of_this_cluster PID: pid files outlive reboots, and pids are reused. Every daemon of ours names its
# folder either in its arguments or in SLURM_CONF.
of_this_cluster() {
  tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null | grep -qF "$DIR/" && return 0
  grep -qszFx "SLURM_CONF=$CONF" "/proc/$1/environ" 2>/dev/null
}

# alive NAME: the daemon whose pid stands in run/NAME.pid is up and is this cluster's.
alive() {
  local pid
  [ -s "$DIR/run/$1.pid" ] || return 1
  read -r pid <"$DIR/run/$1.pid" || true
  [ -n "$pid" ] && running "$pid" && of_this_cluster "$pid"
}

# wait_for SECONDS WHAT COMMAND...: poll until COMMAND succeeds.
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -le "$deadline" ] || die "gave up waiting for $what; logs are in $DIR/log"
    sleep 0.03
  done
}
