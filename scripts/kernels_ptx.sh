#!/bin/sh
# Makes the PTX beside each of our CUDA sources, by NVIDIA's compiler from PyPI (scripts/cuda_env.sh), and has its assembler
# check it for the cards that it is for. The first line of each says of which source it was made; tests compare.
#
#   scripts/kernels_ptx.sh
set -eu
cd "$(dirname "$0")/.."
eval "$(scripts/cuda_env.sh "${CARGO_TARGET_DIR:-target}/rehearsal/cuda")"
made=$(mktemp -d)
trap 'rm -r "$made"' EXIT

# The compiler names the newest version of the language that it knows, which older drivers refuse; the assembler refuses what
# the version that is written in its place does not have.
make() { # SOURCE, OLDEST CARD, LANGUAGE VERSION, CARDS
    source=$1 oldest=$2 version=$3
    shift 3
    nvcc --ptx -O3 -std=c++17 -arch="compute_$oldest" -o "$made/new.ptx" "$source"
    {
        echo "// Made by scripts/kernels_ptx.sh of $(basename "$source") with sha256 $(sha256sum <"$source" | cut -d ' ' -f 1)"
        sed -e '/^\/\//d' -e "s/^\.version .*/.version $version/" -e '/^$/d' "$made/new.ptx"
    } >"$made/made.ptx"
    for card in "$@"; do
        ptxas --gpu-name "sm_$card" --output-file "$made/$card" "$made/made.ptx"
    done
    mv "$made/made.ptx" "${source%.cu}.ptx"
}

# 6.3 brought Turing; 7.0 Ampere, with bf16 products and copies in the background.
make crates/core/src/fused/cuda/fused.cu 75 6.3 75 80 86 90 100 120
make crates/core/src/attention/backends/cuda/rows.cu 75 6.3 75 80 86 90 100 120
make crates/core/src/attention/backends/cuda/attention.cu 80 7.0 80 86 89 90 100 120
