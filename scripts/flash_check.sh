#!/bin/sh
# Type-checks the feature flash-attn on a machine without a GPU or a driver. With --run, runs its tests on the rehearsal, the
# pretend device of rehearsal/, with the definition of attention behind the C function that candle-flash-attn calls: strides,
# layouts, windows, head widths and the order of streams are tested that way, the kernels themselves are not.
#
#   scripts/flash_check.sh [--run [TEST...]]        TEST: names of tests, as for cargo test
#
# candle-flash-attn's build fetches CUTLASS and compiles 53 kernels for hours. Here rehearsal/nvcc stands in for the compiler
# and reads no header, so an empty checkout is enough. What it makes must not get into a build for a card, so everything lies
# in target/rehearsal/flash; NVIDIA's compiler, 104 MB from PyPI, in target/rehearsal/cuda.
set -eu
cd "$(dirname "$0")/.."

run=''
case ${1:-} in
    '') ;;
    --run) run=yes && shift ;;
    *) echo "usage: scripts/flash_check.sh [--run [TEST...]]" >&2 && exit 2 ;;
esac

place=${CARGO_TARGET_DIR:-$PWD/target}/rehearsal
export CARGO_TARGET_DIR="$place/flash"
built=$CARGO_TARGET_DIR/release
settings=$(sh scripts/cuda_env.sh "$place/cuda")
eval "$settings"
# cudaforge, which calls the compiler, would use half of the cores.
export NVCC="$PWD/rehearsal/nvcc" CUDAFORGE_THREADS="${CUDAFORGE_THREADS:-$(nproc)}"

# cudaforge is content with a checkout that has the folder include and stands at the commit.
package=$(cargo metadata --format-version 1 --features flash-attn |
    sed 's/.*"manifest_path":"\([^"]*\/candle-flash-attn-[^"/]*\)\/Cargo.toml".*/\1/')
commit=$(sed -n 's/^const CUTLASS_COMMIT: &str = "\([0-9a-f]*\)";/\1/p' "$package/build.rs")
[ -n "$commit" ] || { echo "flash_check: $package/build.rs names no commit of CUTLASS" >&2 && exit 1; }
export CUDAFORGE_HOME="$CARGO_TARGET_DIR/cudaforge"
checkout=$CUDAFORGE_HOME/git/checkouts/cutlass-$(printf %.16s "$commit")
if [ ! -d "$checkout/include" ]; then
    git init --quiet "$checkout"
    echo "$commit" >"$checkout/.git/HEAD"
    mkdir "$checkout/include"
fi

# What rehearsal/nvcc puts into the library is unknown to cargo.
contents=$(cat rehearsal/nvcc && cc -E rehearsal/flash.c)
contents=$(echo "$contents" | cksum)
if [ "$(cat "$built/flash-stand-in" 2>/dev/null)" != "$contents" ]; then
    cargo clean --quiet --release -p candle-flash-attn
    mkdir -p "$built"
    echo "$contents" >"$built/flash-stand-in"
fi

if [ -z "$run" ]; then
    exec cargo check --release --features flash-attn --all-targets
fi

# One library under every name that programs are linked with. LIBRARY_PATH is the linker's own, so cargo rebuilds nothing.
(cd rehearsal && cargo build --release --locked)
libraries=$built/stand-ins
mkdir -p "$libraries"
for name in cuda cudart cublas cublasLt curand nvrtc; do
    ln -sf ../librehearsal.so "$libraries/lib$name.so"
done
export LIBRARY_PATH="$libraries" LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export REHEARSAL_REPORT="$built/flash-report.json" REHEARSAL_UNORDERED=stop
[ $# -gt 0 ] || set -- attention::flash
# Work runs at once, and then as late as CUDA allows.
for late in 0 1; do
    rm -f "$REHEARSAL_REPORT"
    REHEARSAL_ASYNC=$late cargo test --release --features flash-attn --test main -- "$@"
    grep -q '"run_mha"' "$REHEARSAL_REPORT" || { echo "flash_check: no test reached the kernels" >&2 && exit 1; }
done
