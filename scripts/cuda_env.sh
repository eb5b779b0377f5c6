#!/bin/sh
# Prints the variables that let `cargo check --features cuda` run on a machine without a GPU, a driver or a CUDA
# installation, after putting NVIDIA's compiler and headers (wheels from PyPI, about 1.2 GB) into the folder given.
# Nothing is linked or run that way; flash-attention kernels and libcuda are not to be had as wheels.
#
#   eval "$(scripts/cuda_env.sh DIR)" && cargo check --release --features cuda
set -eu
[ $# -eq 1 ] || { echo "usage: eval \"\$(scripts/cuda_env.sh DIR)\"" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
cuda=$dir/nvidia/cu13
if [ ! -e "$cuda/bin/nvcc" ]; then
    set --
    for part in cuda-nvcc cuda-runtime cuda-crt nvvm cuda-cccl cuda-nvrtc cublas; do
        set -- "$@" "nvidia-$part==13.0.*"
    done
    python3 -m pip install --quiet --no-deps --target "$dir" "$@" nvidia-curand >&2
    chmod +x "$cuda"/bin/* "$cuda"/nvvm/bin/*
fi
# The build script looks for lib64 and for libraries without a version in their names.
[ -e "$cuda/lib64" ] || ln -s lib "$cuda/lib64"
for versioned in "$cuda"/lib/lib*.so.*; do
    plain=${versioned%%.so.*}.so
    [ -e "$plain" ] || ln -s "$(basename "$versioned")" "$plain"
done
for name in CUDA_HOME CUDA_PATH CUDA_ROOT CUDA_TOOLKIT_ROOT_DIR; do
    echo "export $name='$cuda'"
done
echo "export CUDA_COMPUTE_CAP=80 PATH='$cuda/bin':\"\$PATH\""
