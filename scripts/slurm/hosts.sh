#!/bin/sh
# The same as run.sh for a plain list of hosts with ssh: each takes the next shard when it has ended one.
#
#   scripts/slurm/hosts.sh HOSTS --shards 8 --out runs/all [--judge TEXT] [--tries N] [--fetch] -- --data FILE --model DIR --device cuda
#
# HOSTS is a file with a host a line, or several times the same host with another card behind it:
#
#   node1 CUDA_VISIBLE_DEVICES=0
#   node1 CUDA_VISIBLE_DEVICES=1
#   node2
#
# A shard whose host fails goes back to the others, and goes on with the answers that it has (with --fetch: begins anew on another host).
# Data, model and the folder that the command is started in must be at the same place on every host. Where OUT is no shared folder,
# --fetch copies each shard here when it has ended.
#
# PALIMPSEST is the command on the hosts [default: palimpsest], SSH what reaches them [default: ssh -o BatchMode=yes].
set -eu
[ $# -gt 0 ] && [ -r "$1" ] || { echo "hosts.sh: ${1:-the file of hosts} cannot be read; give a file with a host a line" >&2; exit 2; }
hosts=$1
shift
shards='' out='' judge='' tries=3 fetch=''
while [ $# -gt 0 ]; do
    case $1 in
        --shards) shards=${2?"--shards needs a value"}; shift 2 ;;
        --out) out=${2?"--out needs a value"}; shift 2 ;;
        --judge) judge=${2?"--judge needs a value"}; shift 2 ;;
        --tries) tries=${2?"--tries needs a value"}; shift 2 ;;
        --fetch) fetch=yes; shift ;;
        --) shift; break ;;
        *) echo "hosts.sh: $1 is none of its options; what is for \`palimpsest run\` stands behind --" >&2; exit 2 ;;
    esac
done
case $shards in ''|*[!0-9]*|0) echo "hosts.sh: --shards is \`$shards\`; give a number of parts, such as --shards 8" >&2; exit 2 ;; esac
[ -n "$out" ] || { echo "hosts.sh: --out is missing; give the folder of the merged run" >&2; exit 2; }
[ $# -gt 0 ] || { echo "hosts.sh: nothing stands behind --; give what \`palimpsest run\` needs" >&2; exit 2; }
[ ! -e "$out" ] || { echo "hosts.sh: $out is there already; give another --out, or move it away" >&2; exit 1; }
parts=$out.parts
todo=$parts/todo
mkdir -p "$todo"
rm -f "$todo"/*
i=0
while [ "$i" -lt "$shards" ]; do
    [ -e "$parts/$i.done" ] || : > "$todo/$i"
    i=$((i + 1))
done

# An argument as a shell reads it back.
quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
words=''
for word in "$@"; do words="$words $(quoted "$word")"; done
ssh=${SSH:-ssh -o BatchMode=yes}
there=$(quoted "$PWD")

# A shard is whoever's moves it away first.
next() {
    for file in "$todo"/*; do
        shard=${file##*/}
        [ "$shard" != '*' ] && mv "$file" "$parts/$shard.$1" 2>/dev/null && return 0
    done
    return 1
}

worker() {
    number=$1 host=$2 settings=$3 failed=0
    while :; do
        if ! next "$number"; then
            # Another host may still give one back.
            ls "$parts" | grep -q '^[0-9]*\.[0-9][0-9]*$' || return 0
            sleep 1
            continue
        fi
        log=$parts/$shard.log
        echo "shard $shard on $host $settings" >> "$log"
        code=0
        # shellcheck disable=SC2086 # SSH holds options
        $ssh "$host" "cd $there && env $settings ${PALIMPSEST:-palimpsest} run$words --shard $shard/$shards --out $(quoted "$parts/$shard")" \
            < /dev/null >> "$log" 2>&1 || code=$?
        if [ -n "$fetch" ] && { [ $code = 0 ] || [ $code = 3 ]; }; then
            # shellcheck disable=SC2086
            $ssh "$host" "tar -C $there/$(quoted "$parts") -cf - $shard" < /dev/null | tar -C "$parts" -xf - || code=1
        fi
        case $code in
            0|3) echo "shard $shard: done on $host"; : > "$parts/$shard.done"; rm -f "$parts/$shard.$number" ;;
            2) echo "shard $shard: wrong usage, see $log" >&2; rm -f "$parts/$shard.$number" "$todo"/*; return 0 ;;
            *)
                echo "shard $shard: ended with code $code on $host; another try follows, see $log" >&2
                mv "$parts/$shard.$number" "$todo/$shard"
                failed=$((failed + 1))
                [ "$failed" -lt "$tries" ] || { echo "$host: failed $failed times and gets no more shards" >&2; return 0; }
                # Others first.
                sleep 2 ;;
        esac
    done
}

rm -f "$parts"/[0-9]*.[0-9]*
number=0
# The last line may lack its end.
while read -r host settings || [ -n "$host" ]; do
    case $host in ''|'#'*) continue ;; esac
    number=$((number + 1))
    worker "$number" "$host" "$settings" &
done < "$hosts"
wait
set --
i=0
while [ "$i" -lt "$shards" ]; do
    [ -e "$parts/$i.done" ] || { echo "hosts.sh: shard $i has not ended, see $parts/$i.log; the same command goes on" >&2; exit 1; }
    set -- "$@" "$parts/$i"
    i=$((i + 1))
done
"${PALIMPSEST:-palimpsest}" merge "$out" "$@"
[ -z "$judge" ] || "${PALIMPSEST:-palimpsest}" judge "$out" --judge "$judge" || [ $? = 3 ]
"${PALIMPSEST:-palimpsest}" report "$out"
