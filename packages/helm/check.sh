#!/bin/sh
# check.sh: lint the chart and render it, with and without a ZooKeeper of its own. helm is taken from the PATH, or built
# with Go into .cache/go.
set -eu
cd "$(dirname "$0")/../.."
PATH=$PATH:$PWD/.cache/go
if ! command -v helm >/dev/null; then
    command -v go >/dev/null || { echo "check.sh: neither helm nor go is here" >&2; exit 1; }
    echo "check.sh: building helm"
    GOBIN=$PWD/.cache/go go install helm.sh/helm/v3/cmd/helm@v3.16.4
fi
chart=packages/helm/pylogd
helm lint --strict "$chart"
helm template try "$chart" | grep -q 'name: try-zookeeper'
rendered=$(helm template try "$chart" --set zookeeper.connect=zk:2181/p --set profile=online --set brokers=5)
echo "$rendered" | grep -q -- '--set=zookeeper.connect=zk:2181/p'
echo "$rendered" | grep -q -- '--profile=online'
echo "$rendered" | grep -q 'replicas: 5'
! echo "$rendered" | grep -q 'try-zookeeper'
echo "check.sh: the chart is well formed"
