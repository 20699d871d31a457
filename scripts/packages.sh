#!/bin/sh
# Makes sure that commands are there: scripts/packages.sh COMMAND=DEBIAN_PACKAGE ...
# Installs what is missing where it may (Debian or Ubuntu, as root or with a sudo that asks nothing); elsewhere it says
# what to install and fails.
set -eu

missing=""
for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null 2>&1 || missing="$missing ${pair#*=}"
done
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" != 0 ]; then
    if sudo -n true 2>/dev/null; then as_root="sudo -n"; else as_root="no"; fi
fi
if [ "$as_root" = no ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing:$missing (names of Debian packages). Install them with your system's package manager, then run this again." >&2
    exit 1
fi
echo "Installing the Debian packages that are missing:$missing"
export DEBIAN_FRONTEND=noninteractive
# The list of packages may be absent or old, and asking is quick.
$as_root apt-get update -qq </dev/null
# shellcheck disable=SC2086
$as_root apt-get install -y -qq --no-install-recommends $missing </dev/null >/dev/null
