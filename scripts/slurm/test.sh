#!/bin/bash
# Tests run.sh on a Slurm of this machine, and hosts.sh: four shards, one killed and one requeued, merged, equal to a single run.
#
#   sudo scripts/slurm/test.sh [FOLDER]     needs Debian's slurmctld, slurmd, slurm-client and munge; root, as slurmd does
#
# Slurm's and munge's state, sockets and logs are in FOLDER [default: a new one in /tmp], which stays; nothing of the system's is touched.
# PALIMPSEST is the command [default: target/release/palimpsest of this clone].
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export PALIMPSEST="${PALIMPSEST:-$root/target/release/palimpsest}"
work=${1:-$(mktemp -d /tmp/palimpsest-slurm.XXXXXX)}
mkdir -p "$work"
work=$(cd "$work" && pwd)
cd "$work"
host=$(hostname -s)
user=$(id -un)

# 1. Munge and Slurm: one node of as many CPUs as there are.
mkdir -p munge state spool
chmod 700 munge
dd if=/dev/urandom of=munge/key bs=1 count=1024 status=none
chmod 400 munge/key
munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge/pid" \
    --log-file="$work/munge/log" --seed-file="$work/munge/seed"
cat > slurm.conf <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,batch_sched_delay=0
JobRequeue=1
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$work/slurm.conf"
stop() {
    for name in slurmd slurmctld; do [ ! -r "$work/$name.pid" ] || kill "$(cat "$work/$name.pid")" 2>/dev/null || true; done
    [ ! -r munge/pid ] || kill "$(cat munge/pid)" 2>/dev/null || true
}
trap stop EXIT
slurmctld
slurmd
for _ in $(seq 60); do
    sinfo -h -o %T 2>/dev/null | grep -q idle && break
    sleep 1
done
sinfo

# 2. A single run, and the same in four tasks of an array: 12 cases of the sample with a tiny model.
model=$root/tests/fixtures/llama-tiny
set -- --data sample --sessions 12 --model "$model" --limit 12 --max-new-tokens 48 --context 8192
"$PALIMPSEST" run "$@" --out single > single.log 2>&1
"$here/run.sh" --shards 4 --out all -- "$@"
# A task is killed once it has an answer, another one is requeued by hand.
killed='' requeued=''
for _ in $(seq 600); do
    if [ -z "$killed" ] && [ -s all.parts/1/answers.jsonl ]; then
        pid=$(pgrep -f -- "--shard 1/4 --out all.parts/1" | tail -n 1 || true)
        [ -z "$pid" ] || { kill -KILL "$pid" && killed=$(wc -l < all.parts/1/answers.jsonl); }
    fi
    if [ -z "$requeued" ] && [ -s all.parts/2/answers.jsonl ]; then
        task=$(squeue -h -t running -r -o '%i %K' | awk '$2 == 2 { print $1 }')
        [ -z "$task" ] || { scontrol requeue "$task" && requeued=$(wc -l < all.parts/2/answers.jsonl); }
    fi
    [ -n "$killed" ] && [ -n "$requeued" ] && break
    sleep 0.1
done
echo "task 1 killed after ${killed:-no} answers, task 2 requeued after ${requeued:-no}"
for _ in $(seq 600); do
    [ -z "$(squeue -h)" ] && break
    sleep 1
done
cat all.parts/merge.log
grep -h '^task' all.parts/[0-9]*.log
grep -q 'start 2' all.parts/1.log || { echo "task 1 was not started again" >&2; exit 1; }

# 3. A plain list of hosts, one of which is never reached.
printf 'one\ntwo\nbroken\n' > hosts
cat > ssh.sh <<'SSH'
#!/bin/sh
# Stands for ssh: HOST COMMAND.
[ "$1" != broken ] || { echo "ssh: connect to host broken port 22: No route to host" >&2; exit 255; }
exec sh -c "$2"
SSH
chmod +x ssh.sh
SSH=${SSH:-$work/ssh.sh} "$here/hosts.sh" hosts --shards 4 --out listed -- "$@"

# 4. Each equals the single run.
python3 "$here/same_run.py" single all listed
echo "done, in $work"
