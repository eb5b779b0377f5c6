#!/bin/sh
# Holds a server of palimpsest against its own /openapi.json: schemathesis (PyPI) makes requests of all kinds, right ones and wrong
# ones, and no answer may be a 5xx, have a status or a content type that the file does not name, or differ from its schema.
#
#   scripts/schemathesis.sh [--program PATH] [--model MODEL] [--seconds N] [--place FOLDER] [--port PORT]
#
#   --program PATH    palimpsest (target/release/palimpsest)
#   --model MODEL     what is served (tests/fixtures/llama-tiny)
#   --seconds N       how long (600)
#   --place FOLDER    where schemathesis is installed, once, and reports (target/schemathesis)
#   --port PORT       of the server (18765)
#
# Exits with 0 where nothing was found. Needs Python 3.11 with venv, and the network once.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
program=$root/target/release/palimpsest model=$root/tests/fixtures/llama-tiny seconds=600 place=$root/target/schemathesis port=18765
while [ $# -gt 0 ]; do
    case $1 in
    --program) program=${2:?}; shift 2 ;;
    --model) model=${2:?}; shift 2 ;;
    --seconds) seconds=${2:?}; shift 2 ;;
    --place) place=${2:?}; shift 2 ;;
    --port) port=${2:?}; shift 2 ;;
    *) sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p;}' "$0"; exit 2 ;;
    esac
done
mkdir -p "$place"
place=$(cd "$place" && pwd)
if [ ! -x "$place/venv/bin/schemathesis" ]; then
    python3 -m venv "$place/venv"
    "$place/venv/bin/pip" install --quiet 'schemathesis>=4.32,<5'
fi

"$program" serve "$model" --port "$port" --context 512 2>"$place/server.log" &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT INT TERM

# Left out: whether everything that fits the schema is served. A span must lie in its message, a row must have a span's name, and
# `stream_options` wants `stream`: a schema cannot say so.
found=0
(cd "$place" && venv/bin/schemathesis run "http://127.0.0.1:$port/openapi.json" --wait-for-schema 60 --max-time "$seconds" \
    --exclude-checks positive_data_acceptance --phases coverage,fuzzing --continue-on-failure --no-color \
    --request-timeout 120 --suppress-health-check all --report junit --report-dir report) || found=$?
# It must have outlived all that, and end when it is asked to.
"$place/venv/bin/python" -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/health', timeout=10)"
trap - EXIT
kill "$server" && wait "$server"
exit "$found"
