#!/bin/sh
# Runs the tests of our own attention kernels behind the door (tests/attention/fused.rs) on the rehearsal, the pretend device of
# rehearsal/: against the definition, and with kernels that are compiled wrongly on purpose. First with work that runs at once, then
# with work as late and blocks in as bad an order as CUDA allows, and races looked for. Before that NVIDIA's assembler has them for each
# generation of cards: the compiler does not look into instructions that the sources have as text.
#
#   scripts/kernels_check.sh [TEST...]        TEST: names of tests, as for cargo test
set -eu
cd "$(dirname "$0")/.."
built=$(scripts/rehearsal.sh --build)
variables=$(scripts/rehearsal.sh --env)
eval "$variables"
IFS=:
for folder in $(echo "$built" | sed -n 's/^ptx: //p'); do
    [ -e "$folder/attention.ptx" ] || continue
    for card in 75 80 86 89 90 100 120; do
        for kernels in fused rows attention; do
            [ "$card $kernels" = "75 attention" ] || ptxas --gpu-name "sm_$card" --output-file /dev/null "$folder/$kernels.ptx"
        done
    done
    ptxas --gpu-name sm_90a --output-file /dev/null "$folder/hopper.ptx"
done
unset IFS
# The tables of the kernels are of these sources.
python3 scripts/kernel_reckoning.py | cmp - benches/kernels/reckoning.md

export REHEARSAL_UNORDERED=stop
[ $# -gt 0 ] || set -- attention::fused
for late in 0 1; do
    REHEARSAL_ASYNC=$late cargo test --release --locked --features cuda --test main -- "$@"
done
