#!/bin/sh
# Check that Chromium, its driver and axe are here, for the console's tests; install or download them where that is
# possible: Debian's packages chromium and chromium-driver, and npm's package axe-core.
set -e
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >&2
    else
        echo "make: install Chromium and its driver first (Debian: apt-get install chromium chromium-driver)" >&2
        exit 1
    fi
fi
axe=.cache/axe-core-4.14.1
if [ ! -f "$axe/package/axe.min.js" ]; then
    mkdir -p "$axe"
    (cd "$axe" && npm pack --silent axe-core@4.14.1 >/dev/null && tar -xzf axe-core-4.14.1.tgz)
fi
