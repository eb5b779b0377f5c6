#!/bin/sh
# Prints the variables under which the CUDA build compiles on a machine without a GPU, a driver or a CUDA installation,
# after putting NVIDIA's compiler and headers (wheels from PyPI, about 110 MB) into the folder given. g++ must be there.
# cuBLAS and its like are not fetched, and libcuda is not to be had as a wheel: nothing can be linked or run this way,
# except on the rehearsal, which brings stand-ins for them.
#
#   eval "$(scripts/cuda_env.sh DIR)" && cargo check --release --features cuda
set -eu
[ $# -eq 1 ] || { echo "usage: eval \"\$(scripts/cuda_env.sh DIR)\"" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
# A wheel's list of its files is unpacked last, so where it is, the wheel is whole. pip's own --target would not merge
# the folder that all of them share.
set --
for part in cuda_nvcc cuda_crt nvvm cuda_runtime cuda_cccl; do
    [ -e "$(echo "$dir/nvidia_$part"-*.dist-info/RECORD)" ] || set -- "$@" "nvidia-$part==13.0.*"
done
if [ $# -gt 0 ]; then
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$dir/wheels" "$@" >&2
    for wheel in "$dir"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$dir"
    done
    rm -r "$dir/wheels"
fi
cuda=$dir/nvidia/cu13
chmod +x "$cuda"/bin/* "$cuda"/nvvm/bin/*
echo "export CUDA_HOME='$cuda' CUDA_COMPUTE_CAP=80 PATH='$cuda/bin':\"\$PATH\""
