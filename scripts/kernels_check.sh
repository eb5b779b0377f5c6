#!/bin/sh
# Runs the tests of our own attention kernels behind the door (tests/attention/fused.rs) on the rehearsal, the pretend device of
# rehearsal/: against the definition, and with kernels that are compiled wrongly on purpose. First with work that runs at once, then
# with work as late and blocks in as bad an order as CUDA allows, and races looked for.
#
#   scripts/kernels_check.sh [TEST...]        TEST: names of tests, as for cargo test
set -eu
cd "$(dirname "$0")/.."
place=${CARGO_TARGET_DIR:-$PWD/target}/rehearsal
[ -d "$place/lib" ] || scripts/rehearsal.sh --build >&2
eval "$(scripts/cuda_env.sh "$place/cuda")"
export NVCC="$PWD/rehearsal/nvcc" LIBRARY_PATH="$place/lib${LIBRARY_PATH:+:$LIBRARY_PATH}"
export LD_LIBRARY_PATH="$place/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export REHEARSAL_CACHE="${REHEARSAL_CACHE:-$place/kernels}" REHEARSAL_UNORDERED=stop
[ $# -gt 0 ] || set -- attention::fused
for late in 0 1; do
    REHEARSAL_ASYNC=$late cargo test --release --locked --features cuda --test main -- "$@"
done
