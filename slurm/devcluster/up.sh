#!/bin/bash
# Bring up a throw-away Slurm cluster on this one machine: munge, slurmctld, several slurmd with pretend GPUs,
# and accounting (slurmdbd on MariaDB) if asked for. Needs Slurm's Debian packages (install.sh) or another
# release unpacked by get-slurm.sh; runs as root or as an ordinary user, without systemd, cgroups or containers.
# Running it again starts what is missing and leaves the rest alone. down.sh takes it down.
#
#   OUTERLOOP_DEV_DIR            everything of the cluster lives here   (/tmp/outerloop-dev-$UID/c1)
#   OUTERLOOP_DEV_NODES          number of nodes n1, n2, ...            (4)
#   OUTERLOOP_DEV_CPUS           CPUs that each node claims to have     (16)
#   OUTERLOOP_DEV_GPU_NODES      how many of the nodes have GPUs        (2, or fewer with fewer nodes)
#   OUTERLOOP_DEV_GPUS           pretend GPUs on each of those          (4)
#   OUTERLOOP_DEV_ACCOUNTING     none | dbd                             (none)
#   OUTERLOOP_DEV_PORT           first TCP port wanted; the next free block is taken when it is in use
#   OUTERLOOP_DEV_PREFIX         a folder made by get-slurm.sh          (this machine's own Slurm)
#   OUTERLOOP_DEV_SLURM          a Slurm that was built and installed here, with bin and sbin, such as /opt/slurm
#   OUTERLOOP_DEV_CLEAN          1: slurmctld forgets its saved state
#   OUTERLOOP_DEV_MIN_JOB_AGE, _KILL_WAIT, _SLURMD_TIMEOUT, _MESSAGE_TIMEOUT, _CRED_EXPIRE, _GRACE   seconds
#                                (300, 3, 10, 10, 10, 0)
#   OUTERLOOP_DEV_SCHEDULER      more SchedulerParameters, comma-separated
#   OUTERLOOP_DEV_EXTRA          more lines for slurm.conf
#
# Partitions: cpu (default, all nodes), gpu (the nodes with GPUs), preempt (all nodes, lower priority, requeued
# by the other two), short (all nodes, at most 30 minutes). Afterwards: `. $OUTERLOOP_DEV_DIR/env`.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/lib.sh"

NODES=${OUTERLOOP_DEV_NODES:-4}
CPUS=${OUTERLOOP_DEV_CPUS:-16}
GPUS=${OUTERLOOP_DEV_GPUS:-4}
GPU_NODES=${OUTERLOOP_DEV_GPU_NODES:-$((NODES < 2 ? NODES : 2))}
ACCOUNTING=${OUTERLOOP_DEV_ACCOUNTING:-none}
PREFIX=${OUTERLOOP_DEV_PREFIX:-}
INSTALLED=${OUTERLOOP_DEV_SLURM:-}
MAX_NODES=48       # a port block holds 64: 0..2 for slurmctld, slurmdbd and MariaDB, 11.. for the nodes
BLOCK=64
FIRST_PORT=17000   # below Linux's ephemeral range (32768..60999), so no client's socket takes a port of ours
LAST_PORT=32000
ME=$(id -un)
HOST=$(hostname -s)

case $ACCOUNTING in none | dbd) ;; *) die "OUTERLOOP_DEV_ACCOUNTING=$ACCOUNTING: say none or dbd" ;; esac
for knob in NODES CPUS GPUS GPU_NODES; do
  [[ ${!knob} =~ ^[0-9]+$ ]] || die "OUTERLOOP_DEV_$knob=${!knob}: not a number"
done
[ "$NODES" -ge 1 ] && [ "$NODES" -le "$MAX_NODES" ] || die "OUTERLOOP_DEV_NODES=$NODES: between 1 and $MAX_NODES"
[ "$GPU_NODES" -le "$NODES" ] || die "OUTERLOOP_DEV_GPU_NODES=$GPU_NODES: there are only $NODES nodes"
[ "$GPUS" -ge 1 ] || GPU_NODES=0
# The longest socket below DIR must fit into sockaddr_un (108 bytes).
[ ${#DIR} -le 64 ] || die "OUTERLOOP_DEV_DIR is ${#DIR} characters long; unix sockets below it need it to be at most 64"
[[ $DIR =~ ^[A-Za-z0-9/._-]+$ ]] || die "OUTERLOOP_DEV_DIR=$DIR: slurm.conf cannot quote; use letters, digits, . _ - only"
[ -z "${SLURM_JOB_ID:-}" ] || die "not from inside a Slurm job"

umask 022
mkdir -p "$DIR"/{etc,run,log,state,bin,db,spool,dev}
# One starter at a time per cluster; the lock goes with this process (the daemons close it: see 9>&- below).
exec 9>"$DIR/lock"
flock -w 120 9 || die "another up.sh of $DIR has been busy for two minutes"

# ------------------------------------------------------------------------------------------------- programs

TOOLS="sbatch squeue sacct scancel scontrol sinfo srun salloc sacctmgr sdiag sstat slurmctld slurmd slurmstepd slurmdbd"

WRAPPER_MARK="# a tool of an outerloop development cluster"

# program NAME: its real path. Debian's alternatives are absolute links that dangle inside a prefix, so the
# -wlm file that they stand for goes first there.
program() {
  local candidate
  if [ -z "$PREFIX" ]; then
    # PATH may hold the wrappers of this or of another cluster: a wrapper around a wrapper would talk to that
    # one, around itself for ever to nobody.
    for candidate in $(PATH=${INSTALLED:+$INSTALLED/bin:$INSTALLED/sbin:}$PATH:/usr/sbin:/sbin type -aP "$1"); do
      if ! grep -qsxF "$WRAPPER_MARK" "$candidate"; then
        echo "$candidate"
        return
      fi
    done
    return 1
  fi
  for candidate in "$PREFIX"/usr/{bin,sbin}/"$1-wlm" "$PREFIX"/usr/{bin,sbin}/"$1"; do
    if [ -f "$candidate" ]; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

PLUGINS=
LOADER=
if [ -n "$PREFIX" ]; then
  # Another release's binaries run on this machine through their own loader and libraries.
  for candidate in "$PREFIX"/usr/lib/*-linux-gnu/ld-linux-*.so.* "$PREFIX"/usr/lib/*-linux-gnu/ld-*.so; do
    [ -f "$candidate" ] && LOADER=$candidate && break
  done
  [ -n "$LOADER" ] || die "OUTERLOOP_DEV_PREFIX=$PREFIX holds no unpacked Slurm; get-slurm.sh makes one"
  LIBRARIES=$(dirname "$LOADER")
  PLUGINS=$LIBRARIES/slurm-wlm
fi

# A wrapper per tool, so that `PATH=$DIR/bin` is all that a client needs to know of this cluster.
for tool in $TOOLS; do
  binary=$(program "$tool" || true)
  [ -n "$binary" ] || continue
  # Rewritten by rename: a job may be reading the old one this instant.
  {
    echo '#!/bin/sh'
    echo "$WRAPPER_MARK"
    echo "export SLURM_CONF=$CONF"
    if [ -n "$PREFIX" ]; then
      echo "exec $LOADER --argv0 $DIR/bin/$tool --library-path $PLUGINS:$LIBRARIES:$PREFIX/lib/$(basename "$LIBRARIES") $binary \"\$@\""
    else
      echo "exec $binary \"\$@\""
    fi
  } >"$DIR/bin/.$tool"
  chmod 755 "$DIR/bin/.$tool"
  mv -f "$DIR/bin/.$tool" "$DIR/bin/$tool"
done
for tool in sbatch squeue scontrol slurmctld slurmd slurmstepd; do
  [ -x "$DIR/bin/$tool" ] || die "no $tool on this machine; $here/install.sh installs what is needed"
done
MUNGED=$(PATH=$PATH:/usr/sbin:/sbin command -v munged) || die "no munged on this machine; $here/install.sh installs it"
if [ "$ACCOUNTING" = dbd ]; then
  MARIADBD=$(PATH=$PATH:/usr/sbin:/sbin:/usr/libexec command -v mariadbd) || die "accounting needs mariadbd; $here/install.sh installs it"
  [ -x "$DIR/bin/slurmdbd" ] || die "accounting needs slurmdbd; $here/install.sh installs it"
fi

# ---------------------------------------------------------------------------------------------------- ports

listening() { # the listening TCP ports of this machine, decimal, one a line
  local hex
  for hex in $(awk 'FNR > 1 && $4 == "0A" { n = split($2, a, ":"); print a[n] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null); do
    echo $((16#$hex))
  done
}

# reserved BLOCK: another cluster of this account has it, even if it does not listen yet.
reserved() {
  local other
  read -r other 2>/dev/null <"$RESERVATIONS/$1" || return 1
  [ "$other" != "$DIR" ] && [ "$(cat "$other/etc/port" 2>/dev/null)" = "$1" ]
}

block_is_free() {
  local port
  reserved "$1" && return 1
  for port in $TAKEN; do
    [ "$port" -lt "$1" ] || [ "$port" -ge $(($1 + BLOCK)) ] || return 1
  done
}

choose_ports() {
  local start=$1 tries=0
  TAKEN=$(listening)
  until block_is_free "$start"; do
    start=$((start + BLOCK))
    [ "$start" -le "$LAST_PORT" ] || start=$FIRST_PORT
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || die "no free block of $BLOCK ports between $FIRST_PORT and $LAST_PORT"
  done
  echo "$start" >"$DIR/etc/port"
  echo "$DIR" >"$RESERVATIONS/$start"
}

RESERVATIONS=/tmp/outerloop-dev-$(id -u)/ports
mkdir -p "$RESERVATIONS"
PORT=
[ ! -s "$DIR/etc/port" ] || read -r PORT <"$DIR/etc/port"
# A cluster that comes back keeps its ports: its slurmds and its jobs may still be up and know no others.
mine() {
  local file
  [ -n "$PORT" ] || return 1
  [ "$(cat "$RESERVATIONS/$PORT" 2>/dev/null)" != "$DIR" ] || return 0
  for file in "$DIR"/run/*.pid; do # somebody removed the reservation under a running cluster
    if alive "$(basename "$file" .pid)"; then return 0; fi
  done
  return 1
}
if ! mine; then
  # Clusters spread by folder, so that those of two accounts, who share no lock, rarely want the same block.
  wanted=$((FIRST_PORT + BLOCK * ($(printf %s "$DIR" | cksum | cut -d' ' -f1) % ((LAST_PORT - FIRST_PORT) / BLOCK))))
  (
    flock -w 60 8 || die "another cluster has been choosing its ports for a minute"
    choose_ports "${OUTERLOOP_DEV_PORT:-$wanted}"
  ) 8>"$RESERVATIONS/lock"
  read -r PORT <"$DIR/etc/port"
fi

# ------------------------------------------------------------------------------------------------ slurm.conf

write_config() {
  local i gres
  for i in $(seq 0 $((GPUS - 1))); do ln -sfn /dev/null "$DIR/dev/gpu$i"; done # slurmd wants a character device
  : >"$DIR/etc/gres.conf"
  cat >"$CONF.new" <<CONFIG
ClusterName=lab
SlurmctldHost=$HOST(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=$ME
SlurmdUser=$ME
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.sock,cred_expire=${OUTERLOOP_DEV_CRED_EXPIRE:-10}
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$DIR/run/slurmctld.pid
SlurmdPidFile=$DIR/run/slurmd-%n.pid
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd-%n.log
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# The nodes have the CPUs and the memory that we say, whatever slurmd counts.
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=${OUTERLOOP_DEV_SLURMD_TIMEOUT:-10}
MessageTimeout=${OUTERLOOP_DEV_MESSAGE_TIMEOUT:-10}
InactiveLimit=0
KillWait=${OUTERLOOP_DEV_KILL_WAIT:-3}
UnkillableStepTimeout=60
MinJobAge=${OUTERLOOP_DEV_MIN_JOB_AGE:-300}
MaxArraySize=10001
MaxJobCount=20000
JobRequeue=1
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=1,sched_min_interval=0,default_queue_depth=1000${OUTERLOOP_DEV_SCHEDULER:+,$OUTERLOOP_DEV_SCHEDULER}
DebugFlags=NO_CONF_HASH
CONFIG
  [ -z "$PLUGINS" ] || echo "PluginDir=$PLUGINS" >>"$CONF.new"
  if [ "$ACCOUNTING" = dbd ]; then
    cat >>"$CONF.new" <<CONFIG
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((PORT + 1))
# With auth/munge this is where slurmdbd's clients look for the socket.
AccountingStoragePass=$DIR/run/munge.sock
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
CONFIG
  else
    echo "AccountingStorageType=accounting_storage/none" >>"$CONF.new"
  fi
  printf '%s\n' "${OUTERLOOP_DEV_EXTRA:-}" >>"$CONF.new"
  for i in $(seq 1 "$NODES"); do
    gres=
    if [ "$i" -le "$GPU_NODES" ]; then
      gres="Gres=gpu:$GPUS"
      # Without File= slurmd drops the GPUs silently and the node is never usable.
      echo "NodeName=n$i Name=gpu File=$DIR/dev/gpu[0-$((GPUS - 1))]" >>"$DIR/etc/gres.conf"
    fi
    echo "NodeName=n$i NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$((PORT + 10 + i)) CPUs=$CPUS RealMemory=64000 $gres State=UNKNOWN" >>"$CONF.new"
  done
  cat >>"$CONF.new" <<CONFIG
PartitionName=cpu Nodes=n[1-$NODES] Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=n[1-$NODES] MaxTime=00:30:00 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=preempt Nodes=n[1-$NODES] MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=${OUTERLOOP_DEV_GRACE:-0}
CONFIG
  [ "$GPU_NODES" -eq 0 ] ||
    echo "PartitionName=gpu Nodes=n[1-$GPU_NODES] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF" >>"$CONF.new"
  mv -f "$CONF.new" "$CONF"
  # Releases from 24.05 on look for cgroups unless told not to; 22.05 does not know the word.
  rm -f "$DIR/etc/cgroup.conf"
  case $("$DIR/bin/slurmd" -V) in
  'slurm-wlm 22.'* | 'slurm 22.'* | *' 21.'* | *' 20.'*) ;;
  *) echo "CgroupPlugin=disabled" >"$DIR/etc/cgroup.conf" ;;
  esac
}

alive slurmctld || write_config
export SLURM_CONF=$CONF

# --------------------------------------------------------------------------------------------------- daemons

port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

if ! alive munged; then
  if [ ! -s "$DIR/etc/munge.key" ]; then
    (umask 077 && head -c 128 /dev/urandom >"$DIR/etc/munge.key")
  fi
  rm -f "$DIR"/run/munge.sock*
  "$MUNGED" --key-file="$DIR/etc/munge.key" --socket="$DIR/run/munge.sock" --pid-file="$DIR/run/munged.pid" \
    --log-file="$DIR/log/munged.log" --seed-file="$DIR/run/munged.seed" --num-threads=4 9>&-
  wait_for 20 "munged" test -S "$DIR/run/munge.sock"
fi

if [ "$ACCOUNTING" = dbd ]; then
  if ! alive mariadb; then
    cat >"$DIR/etc/my.cnf" <<CONFIG
[mariadbd]
datadir=$DIR/db
socket=$DIR/run/mariadb.sock
pid-file=$DIR/run/mariadb.pid
log-error=$DIR/log/mariadb.log
bind-address=127.0.0.1
port=$((PORT + 2))
user=$ME
skip-name-resolve
performance_schema=OFF
innodb_buffer_pool_size=64M
innodb_log_file_size=32M
# slurmdbd warns below 900 s; durability is worth nothing here
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=0
innodb_doublewrite=0
CONFIG
    if [ ! -d "$DIR/db/mysql" ]; then
      mariadb-install-db --no-defaults --datadir="$DIR/db" --user="$ME" --auth-root-authentication-method=normal \
        --skip-test-db >"$DIR/log/mariadb-install.log" 2>&1 || die "mariadb-install-db failed; see $DIR/log/mariadb-install.log"
    fi
    cat >"$DIR/etc/init.sql" <<'SQL'
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
SQL
    rm -f "$DIR/run/mariadb.pid"
    setsid "$MARIADBD" --defaults-file="$DIR/etc/my.cnf" --init-file="$DIR/etc/init.sql" \
      </dev/null >>"$DIR/log/mariadb.out" 2>&1 9>&- &
    wait_for 60 "MariaDB" port_open $((PORT + 2))
  fi
  if ! alive slurmdbd; then
    (
      umask 077
      cat >"$DIR/etc/slurmdbd.conf" <<CONFIG
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.sock
DbdHost=$HOST
DbdAddr=127.0.0.1
DbdPort=$((PORT + 1))
SlurmUser=$ME
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((PORT + 2))
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
PidFile=$DIR/run/slurmdbd.pid
LogFile=$DIR/log/slurmdbd.log
DebugLevel=info
CONFIG
      [ -z "$PLUGINS" ] || echo "PluginDir=$PLUGINS" >>"$DIR/etc/slurmdbd.conf"
    )
    "$DIR/bin/slurmdbd" 9>&-
    wait_for 60 "slurmdbd" port_open $((PORT + 1))
  fi
fi

if ! alive slurmctld; then
  "$DIR/bin/slurmctld" -f "$CONF" ${OUTERLOOP_DEV_CLEAN:+-c} 9>&-
  wait_for 30 "slurmctld" "$DIR/bin/scontrol" ping
fi
for i in $(seq 1 "$NODES"); do
  alive "slurmd-n$i" && continue
  mkdir -p "$DIR/spool/n$i"
  "$DIR/bin/slurmd" -f "$CONF" -N "n$i" -d "$DIR/bin/slurmstepd" 9>&-
done

nodes_up() {
  [ "$("$DIR/bin/sinfo" -h -N -p cpu -t idle,mixed,allocated -o %N | sort -u | wc -l)" -ge "$NODES" ]
}
# A suspended controller (SIGSTOP, as the tests do) cannot answer; then the daemons being there is all we can say.
if ! grep -qs '^State:[[:space:]]*T' "/proc/$(cat "$DIR/run/slurmctld.pid")/status"; then
  wait_for 60 "$NODES nodes to be usable (sinfo says why not)" nodes_up
fi

cat >"$DIR/env.new" <<ENV
export SLURM_CONF=$CONF
export OUTERLOOP_DEV_DIR=$DIR
case :\$PATH: in *:$DIR/bin:*) ;; *) export PATH=$DIR/bin:\$PATH ;; esac
ENV
mv -f "$DIR/env.new" "$DIR/env"
say "up: $NODES nodes, $GPU_NODES with $GPUS GPUs, accounting $ACCOUNTING. Use it with:  . $DIR/env"
