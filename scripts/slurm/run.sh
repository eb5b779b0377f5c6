#!/bin/sh
# One command from a data file to a report, on a cluster with Slurm: a job array over the shards of a run, and a job that merges them.
#
#   scripts/slurm/run.sh --shards 8 --out runs/all [--sbatch '--gres=gpu:1 --mem=64G'] [--judge URL] -- --data FILE --model DIR --device cuda
#
# What stands behind `--` goes to `palimpsest run`. Shard I answers into OUT.parts/I, on the card that Slurm gives its task
# (CUDA_VISIBLE_DEVICES: `--device cuda` is that one). A task that is killed is requeued and goes on with the answers that it has.
# When all have ended, one job more merges them into OUT, judges (--judge) and writes OUT/report.html. Logs are in OUT.parts/.
#
#   --shards N      tasks of the array; cases are divided evenly
#   --at-once N     most tasks at a time [default: all]
#   --tries N       how often a task that fails is started again [default: 3]
#   --sbatch TEXT   further options of sbatch for the array: partition, card, memory, time
#   --judge TEXT    `palimpsest judge`'s --judge, before the report
#   --wait          come back when the report is there
#
# PALIMPSEST is the command on the nodes [default: palimpsest]. OUT, the data and the model must be in a folder that all nodes see.
# Fetch the model first (`palimpsest model pull`): nodes often have no network.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
shards='' out='' at_once='' tries=3 options='' judge='' wait=''
while [ $# -gt 0 ]; do
    case $1 in
        --shards) shards=${2?"--shards needs a value"}; shift 2 ;;
        --out) out=${2?"--out needs a value"}; shift 2 ;;
        --at-once) at_once=%${2?"--at-once needs a value"}; shift 2 ;;
        --tries) tries=${2?"--tries needs a value"}; shift 2 ;;
        --sbatch) options=${2?"--sbatch needs a value"}; shift 2 ;;
        --judge) judge=${2?"--judge needs a value"}; shift 2 ;;
        --wait) wait=--wait; shift ;;
        --) shift; break ;;
        *) echo "run.sh: $1 is none of its options; what is for \`palimpsest run\` stands behind --" >&2; exit 2 ;;
    esac
done
case $shards in ''|*[!0-9]*|0) echo "run.sh: --shards is \`$shards\`; give a number of tasks, such as --shards 8" >&2; exit 2 ;; esac
[ -n "$out" ] || { echo "run.sh: --out is missing; give the folder of the merged run" >&2; exit 2; }
[ $# -gt 0 ] || { echo "run.sh: nothing stands behind --; give what \`palimpsest run\` needs, such as -- --data FILE --model DIR" >&2; exit 2; }
[ ! -e "$out" ] || { echo "run.sh: $out is there already; its shards were merged. Give another --out, or move it away" >&2; exit 1; }
command -v sbatch >/dev/null || { echo "run.sh: there is no sbatch here; scripts/slurm/hosts.sh needs ssh alone" >&2; exit 1; }
mkdir -p "$out.parts"

export PALIMPSEST="${PALIMPSEST:-palimpsest}" PALIMPSEST_TRIES="$tries" PALIMPSEST_JUDGE="$judge"
# shellcheck disable=SC2086 # --sbatch holds several options
array=$(sbatch --parsable --job-name=palimpsest --array="0-$((shards - 1))$at_once" --requeue --open-mode=append \
    --signal=B:TERM@120 --output="$out.parts/%a.log" $options "$here/shard.sbatch" "$shards" "$out" "$@")
array=${array%%;*}
echo "array $array: $shards tasks, logs in $out.parts/"
# A dependency that cannot be met ends the job, too: else it would wait for ever.
finish=$(sbatch --parsable --job-name=palimpsest-merge --dependency="afterok:$array" --kill-on-invalid-dep=yes \
    --output="$out.parts/merge.log" $wait "$here/finish.sbatch" "$shards" "$out") || {
    echo "run.sh: not all tasks ended well; see $out.parts/*.log; the same command goes on" >&2
    exit 1
}
echo "job ${finish%%;*} merges them into $out and writes $out/report.html"
