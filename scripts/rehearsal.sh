#!/bin/sh
# Runs the CUDA build of palimpsest on a pretend device (rehearsal/README.md), building what is missing first: NVIDIA's
# compiler from PyPI (once), the stand-in for the driver's libraries, and palimpsest itself with the feature `cuda`.
#
#   scripts/rehearsal.sh [--devices N] [--memory SIZE] [--async] [--report FILE] [--] ARGS...
#   scripts/rehearsal.sh --build            builds and says where the program and its library are
#
#   --devices N      cards that there are (1)
#   --memory SIZE    bytes of each, also as 8GB or 8GiB (80GiB)
#   --async          work is done as late and in as bad an order as CUDA allows
#   --report FILE    writes launches, copies and peak memory as JSON at the end
#
# Output and exit code are palimpsest's; what is built says so on stderr. Everything lies in target/rehearsal.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
place=${CARGO_TARGET_DIR:-$root/target}/rehearsal

build_only=
while [ $# -gt 0 ]; do
    case $1 in
    --devices) REHEARSAL_DEVICES=${2:?--devices needs a number}; export REHEARSAL_DEVICES; shift 2 ;;
    --memory) REHEARSAL_MEMORY=${2:?--memory needs a size, such as 8GB}; export REHEARSAL_MEMORY; shift 2 ;;
    --report) REHEARSAL_REPORT=${2:?--report needs a file}; export REHEARSAL_REPORT; shift 2 ;;
    --async) REHEARSAL_ASYNC=1; export REHEARSAL_ASYNC; shift ;;
    --build) build_only=1; shift ;;
    --help) sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p;}' "$0"; exit 0 ;;
    --) shift; break ;;
    *) break ;;
    esac
done

# Puts what cargo built where another build does not replace it; by renaming, since it may be running.
keep() {
    built=${CARGO_TARGET_DIR:-$root/target}/release/$1
    cmp -s "$built" "$2" || { cp "$built" "$2.new" && mv "$2.new" "$2"; }
}

# 1. The stand-in, under the names of the libraries that it takes the place of.
build() {
    cd "$root"
    mkdir -p "$place/lib" "$place/kernels"
    cargo build --quiet --release --locked -p rehearsal >&2
    keep librehearsal.so "$place/lib/librehearsal.so"
    for name in libcuda.so libcuda.so.1 libcublas.so libcublas.so.13 libcublasLt.so libcublasLt.so.13 libcurand.so \
        libcurand.so.10 libnvrtc.so libnvrtc.so.13 libcudart.so libcudart.so.13; do
        ln -sfn librehearsal.so "$place/lib/$name"
    done

    # 2. palimpsest, its kernels compiled to PTX.
    eval "$(scripts/cuda_env.sh "$place/cuda")"
    NVCC=$root/rehearsal/nvcc LIBRARY_PATH=$place/lib${LIBRARY_PATH:+:$LIBRARY_PATH} \
        cargo build --quiet --release --locked --features cuda --bin palimpsest >&2
    keep palimpsest "$place/palimpsest"
}
(build)

export REHEARSAL_CACHE=${REHEARSAL_CACHE:-$place/kernels}
if [ -n "$build_only" ]; then
    echo "program: $place/palimpsest"
    echo "library: $place/lib"
    exit 0
fi
LD_LIBRARY_PATH=$place/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$place/palimpsest" "$@"
