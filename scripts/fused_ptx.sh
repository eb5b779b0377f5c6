#!/bin/sh
# Makes src/fused/cuda/fused.ptx of fused.cu beside it, by NVIDIA's compiler from PyPI (scripts/cuda_env.sh), and has its
# assembler check it for cards from Turing to Blackwell. The first line says of which source it was made; a test compares.
#
#   scripts/fused_ptx.sh
set -eu
cd "$(dirname "$0")/.."
eval "$(scripts/cuda_env.sh "${CARGO_TARGET_DIR:-target}/rehearsal/cuda")"
source=src/fused/cuda/fused.cu
made=$(mktemp -d)
trap 'rm -r "$made"' EXIT
nvcc --ptx -O3 -std=c++17 -arch=compute_75 -o "$made/new.ptx" "$source"
# The compiler names the newest version of the language that it knows, which older drivers refuse. 6.3 brought Turing; the
# assembler refuses what that version does not have.
{
    echo "// Made by scripts/fused_ptx.sh of fused.cu with sha256 $(sha256sum <"$source" | cut -d ' ' -f 1)"
    sed -e '/^\/\//d' -e 's/^\.version .*/.version 6.3/' -e '/^$/d' "$made/new.ptx"
} >"$made/fused.ptx"
for card in sm_75 sm_80 sm_86 sm_90 sm_100 sm_120; do
    ptxas --gpu-name $card --output-file "$made/$card" "$made/fused.ptx"
done
mv "$made/fused.ptx" src/fused/cuda/fused.ptx
