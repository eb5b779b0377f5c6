# What .ci/run and .ci/nightly share; both are in the clone's root when they read it.

# Installs a package (the second word) if there is no such command (the first).
need() { command -v "$1" >/dev/null || { apt-get update -q && apt-get install -yq "$2"; }; }

# The seconds since the start say what each step costs.
step() { printf '\n== %s (at %d s)\n' "$*" "$SECONDS"; }

# The tests run Python, fetch models with pip and build C code (TLS).
tools() {
    need cc gcc
    need python3 python3
    python3 -m pip --version >/dev/null 2>&1 || { apt-get update -q && apt-get install -yq python3-pip; }
    python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -yq python3-venv; }
}

# The view's page in Debian's Chromium, over folders that the binary makes with tiny models: in_chromium PYTEST-ARGUMENTS.
# Here a browser that is missing is an error.
in_chromium() {
    need chromium chromium
    need chromedriver chromium-driver
    local venv && venv=$(mktemp -d) && python3 -m venv "$venv"
    "$venv/bin/pip" install -q -r tests/browser/requirements.txt
    PALIMPSEST="$target/release/palimpsest" PALIMPSEST_TESTS=all "$venv/bin/python" -m pytest -q tests/browser "$@"
    rm -rf "$venv"
}

target=${CARGO_TARGET_DIR:-$PWD/target}
