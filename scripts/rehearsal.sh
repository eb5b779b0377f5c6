#!/bin/sh
# Runs the CUDA build of palimpsest on a pretend device (rehearsal/README.md), building what is missing first: NVIDIA's
# compiler from PyPI (once), the stand-in for the driver's libraries, and palimpsest itself with the feature `cuda`.
#
#   scripts/rehearsal.sh [--devices N] [--memory SIZE] [--async] [--loading] [--report FILE] [--] ARGS...
#   scripts/rehearsal.sh --build            builds, and says where the program, its library and its kernels' PTX are
#   scripts/rehearsal.sh --env              builds the library, and prints what cargo needs to build and test on it:
#                                           eval "$(scripts/rehearsal.sh --env)" && cargo test --release --features cuda ...
#
#   --devices N      cards that there are (1)
#   --memory SIZE    bytes of each, also as 8GB or 8GiB (80GiB)
#   --async          work is done as late and in as bad an order as CUDA allows
#   --loading        builds the program that looks for the driver when it opens a device (scripts/cuda.toml); its libraries are compiled
#                    again for it
#   --report FILE    writes launches, copies and peak memory as JSON at the end
#
# Output and exit code are palimpsest's; what is built says so on stderr. Everything lies in target/rehearsal; target/release
# is left as it was, though cargo keeps what goes into both where it always does, so that it is compiled once.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
place=$target/rehearsal

only='' loading=''
while [ $# -gt 0 ]; do
    case $1 in
    --devices) REHEARSAL_DEVICES=${2:?--devices needs a number}; export REHEARSAL_DEVICES; shift 2 ;;
    --memory) REHEARSAL_MEMORY=${2:?--memory needs a size, such as 8GB}; export REHEARSAL_MEMORY; shift 2 ;;
    --report) REHEARSAL_REPORT=${2:?--report needs a file}; export REHEARSAL_REPORT; shift 2 ;;
    --loading) loading=yes; shift ;;
    --async) REHEARSAL_ASYNC=1; export REHEARSAL_ASYNC; shift ;;
    --build | --env) only=$1; shift ;;
    --help) sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p;}' "$0"; exit 0 ;;
    --) shift; break ;;
    *) break ;;
    esac
done
export REHEARSAL_CACHE="${REHEARSAL_CACHE:-$place/kernels}"

# The stand-in under the names of the libraries that it takes the place of, and the variables for builds on it.
environment() {
    cd "$root"
    export CARGO_TARGET_DIR="$place" CARGO_BUILD_BUILD_DIR="${CARGO_BUILD_BUILD_DIR:-$target}"
    mkdir -p "$place/lib" "$place/kernels"
    (cd rehearsal && cargo build --quiet --release --locked >&2)
    for name in libcuda.so libcuda.so.1 libcublas.so libcublas.so.13 libcublasLt.so libcublasLt.so.13 libcurand.so \
        libcurand.so.10 libnvrtc.so libnvrtc.so.13 libcudart.so libcudart.so.13; do
        ln -sfn ../release/librehearsal.so "$place/lib/$name"
    done
    scripts/cuda_env.sh "$place/cuda"
    echo "export NVCC='$root/rehearsal/nvcc' CARGO_TARGET_DIR='$place' CARGO_BUILD_BUILD_DIR='$CARGO_BUILD_BUILD_DIR'"
    echo "export LIBRARY_PATH='$place/lib${LIBRARY_PATH:+:$LIBRARY_PATH}' LD_LIBRARY_PATH='$place/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}'"
    echo "export REHEARSAL_CACHE='$REHEARSAL_CACHE'"
}

# palimpsest, its kernels compiled to PTX; cargo says where.
build() {
    variables=$(environment)
    eval "$variables"
    cd "$root"
    cargo build --quiet --release --locked --features cuda --bin palimpsest ${loading:+--config scripts/cuda.toml} \
        --message-format json-render-diagnostics >"$place/build.json"
}

if [ "$only" = --env ]; then
    environment
    exit
fi
(build)
program=$(sed -n 's/.*"name":"palimpsest".*"executable":"\([^"]*\)".*/\1/p' "$place/build.json" | tail -1)
if [ "$only" = --build ]; then
    ptx=$(sed -n '/"build-script-executed"/s/.*[#/]\(palimpsest-core\|candle-kernels\)@.*"out_dir":"\([^"]*\)".*/\2/p' "$place/build.json" | paste -sd: -)
    echo "program: $program"
    echo "library: $place/lib"
    echo "ptx: $ptx"
    exit
fi
LD_LIBRARY_PATH=$place/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$program" "$@"
