#!/usr/bin/env bash
# Builds the wheel that a release offers, checks it and writes its SHA-256 beside it:
#
#   scripts/wheels.sh [OUT]     OUT: the folder for the wheel (default: target/wheels); wheels and SHA256SUMS in it are replaced
#
# One wheel serves CPython 3.10 and later (abi3). On Linux zig links it against the glibc of TAG (default: manylinux_2_17, glibc of
# 2012), whatever the machine's own is, and auditwheel must find it compatible with TAG. On macOS it is built with Metal.
# Not run as a whole so far: the flags are those of maturin 1.16.0 and auditwheel 6.8.2, and the check of auditwheel's answer was tried on
# another wheel.
set -euo pipefail
out=${1:-}
# Relative to where it was typed.
case $out in '' | /*) ;; *) out=$PWD/$out ;; esac
cd "$(dirname "$0")/.."
out=${out:-$PWD/target/wheels}
tag=${TAG:-manylinux_2_17}
case $tag in
    manylinux_[0-9]*_[0-9]*) ;;
    *) echo "wheels.sh: TAG is $tag; give manylinux_MAJOR_MINOR of a glibc, such as manylinux_2_28" >&2; exit 2 ;;
esac

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install -q --disable-pip-version-check 'maturin[zig]==1.16.0' ziglang==0.17.1 auditwheel==6.8.2
PATH="$tools/bin:$PATH"
# The zig of this environment, also where another is installed.
export CARGO_ZIGBUILD_PYTHON_PATH="$tools/bin/python3"

mkdir -p "$out"
rm -f "$out"/*.whl "$out/SHA256SUMS"
if [ "$(uname)" = Linux ]; then
    # `check`: a library from outside the tag is an error, where the default would copy it into the wheel.
    maturin build --release --locked --zig --compatibility "$tag" --auditwheel check --out "$out"
else
    maturin build --release --locked --features metal --out "$out"
fi
wheels=("$out"/*.whl)
[ ${#wheels[@]} = 1 ] && [ -f "${wheels[0]}" ] || { echo "wheels.sh: expected one wheel in $out, found ${#wheels[@]}" >&2; exit 1; }
wheel=${wheels[0]}

if [ "$(uname)" = Linux ]; then
    auditwheel show --json "$wheel" | python3 -c '
import json, re, sys

version = lambda tag: tuple(map(int, re.match(r"manylinux_(\d+)_(\d+)", tag).groups())) if "manylinux" in tag else (99, 99)
wanted, found = sys.argv[1], json.load(sys.stdin)
print("auditwheel:", found["overall_tag"])
if version(found["overall_tag"]) > version(wanted):
    sys.exit(f"wheels.sh: the wheel is not compatible with {wanted}: {json.dumps(found, indent=1)}")
' "$tag"
fi

# As a user has it: nothing but the wheel, its dependency numpy, and a model.
python3 -m venv "$tools/user"
"$tools/user/bin/pip" install -q --disable-pip-version-check "$wheel"
"$tools/user/bin/palimpsest" --version
# -I: without this folder and the environment's paths.
"$tools/user/bin/python" -I - tests/fixtures/llama-tiny <<'PY'
import sys

import palimpsest

model = palimpsest.Model.load(sys.argv[1])
prompt = model.prompt("the cat sat on the mat. where is the cat?", spans={"old": "the cat sat on the mat", "query": "where is the cat?"})
mass = model.trace(prompt).to_numpy()
assert mass.size > 0 and (mass >= 0).all() and (mass <= 1).all(), mass
print("a trace of", mass.shape)
PY
cd "$out"
if command -v sha256sum >/dev/null; then
    sha256sum -- *.whl >SHA256SUMS
else
    shasum -a 256 -- *.whl >SHA256SUMS
fi
echo "$wheel"
