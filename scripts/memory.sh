#!/usr/bin/env bash
# Runs the tests of the crates with the most unsafe code under AddressSanitizer:  scripts/memory.sh
#
# The sanitizer's runtime comes with the stable toolchain; only the flag that asks for it counts as unstable. CONTRIBUTING.md
# says which module is covered by what.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')

# Naming the target keeps the flag off build scripts, and the instrumented build apart from the plain one.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address"
# What a test leaves to the end of its process is not what is looked for.
export ASAN_OPTIONS=detect_leaks=0
# Long enough for every length and alignment, without the millions of values that check rounding.
export FANIN_TEST_BRIEF=1

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if cargo run --quiet --target "$host" -p fanin-numeric --example memory_canary >"$log" 2>&1; then
  echo "FAILED: the sanitizer did not notice the deliberate bug of memory_canary"
  exit 1
elif ! grep -q "AddressSanitizer: heap-buffer-overflow" "$log"; then
  cat "$log"
  echo "FAILED: memory_canary ended for another reason than its deliberate bug"
  exit 1
fi
echo "the deliberate bug was found"

cargo test --no-fail-fast --target "$host" -p fanin-wire -p fanin-numeric -p fanin-net --lib --tests -- --show-output
# The unit tests of fanin-shm run under a model checker that switches stacks by itself, which the sanitizer cannot follow.
cargo test --no-fail-fast --target "$host" -p fanin-shm --test '*' -- --show-output
