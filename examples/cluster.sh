#!/bin/sh
# Starts a cluster of three nodes on this machine, trains on it, and stops it. On several machines the same commands take
# the machines' addresses. Usage: examples/cluster.sh [FIRST_PORT], from the root of the repository, with `tau` on the PATH.
set -eu
port=${1:-7700}
folder=$(mktemp -d)
nodes=
stop() {
  # shellcheck disable=SC2086 # It is a list of processes.
  [ -z "$nodes" ] || { kill $nodes && wait $nodes; } 2>/dev/null || true
  rm -rf "$folder"
}
trap stop EXIT
trap 'exit 1' INT TERM HUP

export TAU_CREDENTIALS="$folder/cluster.pem" TAU_CLUSTER="127.0.0.1:$port"
tau credentials new "$TAU_CREDENTIALS"
for number in 1 2 3; do
  address=127.0.0.1:$((port + number - 1))
  command=seed
  [ "$number" = 1 ] || command="join $TAU_CLUSTER"
  # shellcheck disable=SC2086 # `join` and its address are two words.
  tau $command --listen "$address" --name "node-$number" --dir "$folder/node-$number" --threads 1 &
  nodes="$nodes $!"
done
tries=0
until [ "$(tau nodes 2>/dev/null | grep -c node-)" = 3 ]; do
  tries=$((tries + 1))
  [ $tries -lt 30 ] || { echo "error: the three nodes have not found each other within 30 s" >&2 && exit 1; }
  sleep 1
done
tau start examples/job.toml
