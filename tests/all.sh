#!/usr/bin/env bash
# Every test there is, on a machine with nothing but Rust: format, lints, tests, documentation, instruction counts, loom,
# package. Prints a line for each part and stops at the first that fails.
set -euo pipefail
cd "$(dirname "$0")/.."

part() {
    printf '\n== %s (%s s so far)\n' "$1" "$SECONDS"
    shift
    "$@"
}

# The servers, browser and load generator that tests put in front of ours.
missing=()
for pair in wrk:wrk nginx:nginx-light chromium:chromium redis-server:redis-server; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || [ -x "/usr/sbin/${pair%%:*}" ] || missing+=("${pair##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
    part 'installing' env DEBIAN_FRONTEND=noninteractive sh -c \
        'sudo=$(command -v sudo || true); $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends "$@"' \
        sh "${missing[@]}"
fi

# The components may be left out of a minimal toolchain.
if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    rustup component add rustfmt clippy
fi

part 'format' cargo fmt --check
part 'lints' cargo clippy --locked --all-targets --all-features -- -D warnings
part 'lints of the library alone' cargo clippy --locked --lib -- -D warnings
part 'lints of the layer alone' cargo clippy --locked --lib --features tower -- -D warnings
part 'lints of shared limits alone' cargo clippy --locked --lib --features redis -- -D warnings
part 'lints without std' cargo clippy --locked --lib --no-default-features -- -D warnings
part 'builds without std' cargo build --locked --manifest-path tests/no_std/Cargo.toml --target-dir target/no_std
part 'tests of the library alone' cargo test --locked
part 'tests with every feature' cargo test --locked --release --all-features
part 'documentation' env RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --all-features
part 'benches run' cargo bench --locked --profile release --all-features --bench compare -- --test hot
part 'latency bench runs' cargo bench --locked --profile release --all-features --bench latency -- --test
part 'algorithms bench runs' cargo bench --locked --profile release --all-features --bench algorithms -- --test
part 'layer bench runs' cargo bench --locked --profile release --all-features --bench layer -- --test
part 'accuracy bench runs' cargo bench --locked --profile release --all-features --bench accuracy -- --test
part 'fleet bench runs' cargo bench --locked --profile release --all-features --bench fleet -- --test
part 'instructions are within their limits' bash tests/instructions.sh
part 'loom' env RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target-loom \
    cargo test --locked --release --lib -- loom_tests
dirty=$(git status --porcelain 2>/dev/null || true)
part 'package' cargo package --locked --no-verify ${dirty:+--allow-dirty}

printf '\nAll passed in %s s.\n' "$SECONDS"
