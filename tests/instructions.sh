#!/usr/bin/env bash
# The regression gate: counts the instructions of each operation under callgrind, and fails where one takes more than
# its limit in tests/instructions/benches. Installs what is missing: valgrind, and gungraun's runner.
set -euo pipefail
cd "$(dirname "$0")/instructions"

if [ "$(uname -sm)" != 'Linux x86_64' ]; then
    echo 'Skipped: the limits are those of x86_64 Linux.'
    exit 0
fi

if ! command -v valgrind >/dev/null; then
    as_root=$([ "$(id -u)" = 0 ] || echo sudo)
    $as_root apt-get update -qq
    $as_root apt-get install -qq --no-install-recommends valgrind
fi

# The runner works only with the gungraun of its own version, so the lock file says which.
version=$(cargo pkgid --locked gungraun-runner)
version=${version##*[#@]}
export PATH="${CARGO_INSTALL_ROOT:-${CARGO_HOME:-$HOME/.cargo}}/bin:$PATH"
if [ "$(gungraun-runner --version 2>/dev/null)" != "gungraun-runner $version" ]; then
    # Unoptimized it is there in a third of the time, and the counts are valgrind's.
    cargo install --quiet --debug --locked --force gungraun-runner --version "=$version"
fi

cargo bench --locked --bench instructions --target-dir ../../target/instructions
