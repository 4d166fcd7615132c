#!/bin/sh
# verify.sh FOLDER SIGNERS: check a release: SHA256SUMS is signed by one of SIGNERS (ssh-keygen's allowed signers), and
# every file that it lists has its checksum.
set -eu
signers=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cd "$1"
ssh-keygen -q -Y verify -f "$signers" -I releases@pylogd -n pylogd-release -s SHA256SUMS.sig <SHA256SUMS
sha256sum --check --strict --quiet SHA256SUMS
