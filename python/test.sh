#!/bin/sh
# Tests langchain-palimpsest and llamaindex-palimpsest with the released libraries against a real server.
#
#   python/test.sh [FOLDER]     FOLDER keeps the virtual environment (default: python/.venv)
#
# PALIMPSEST is the command to serve with (default: target/release/palimpsest). PALIMPSEST_TESTS=all also takes SmolLM2-135M.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$here/.venv}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
for package in langchain-palimpsest llamaindex-palimpsest; do
    "$venv/bin/pip" install -q --disable-pip-version-check "$here/$package[test]"
    (cd "$here/$package" && "$venv/bin/python" -m pytest -q tests)
done
