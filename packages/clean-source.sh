#!/bin/bash
# clean-source.sh FOLDER: copy the checkout's files, without what was built in it, to a new folder. All files get the
# same mode and SOURCE_DATE_EPOCH as their time, so that what is built from them does not depend on this checkout.
set -eu
mkdir "$1"
target=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' name; do
        [ ! -e "$name" ] || printf '%s\0' "$name"
    done
else
    find . -type f ! -path './.*' ! -path './dist/*' ! -name '*.so' ! -name '*.py[co]' -print0
fi | tar --null --files-from=- --create --mode=u=rwX,go=rX | tar --extract --directory "$target"
find "$target" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
