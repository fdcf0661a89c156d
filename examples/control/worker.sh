#!/bin/sh
# Report the status of a service to the node from a shell script.
#   SVCNODE_CONTROL=/run/svcnode/control.sock sh worker.sh ID TTL_IN_SECONDS
set -eu
id=$1 ttl=$2

node() { # node METHOD PATH [JSON]
    curl --silent --show-error --fail-with-body --max-time 5 --unix-socket "$SVCNODE_CONTROL" \
        --request "$1" --data "${3-}" "http://localhost/v1/$2"
}

stop() {
    node PUT "services/$id/status" '{"status": "down", "reason": "stopped"}'
    node DELETE "services/$id"
    exit 0
}

trap stop INT TERM
node PUT "services/$id" "{\"ttl\": \"${ttl}s\", \"name\": \"Worker in shell\"}"
while true; do
    node PUT "services/$id/status" '{"status": "up"}' || true # the node may be restarted meanwhile
    sleep "$((ttl / 3))" & # in the background, so that a signal is handled at once
    wait $! || true
done
