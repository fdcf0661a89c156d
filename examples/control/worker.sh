#!/bin/sh
# Report the status of a service to the node from a shell script.
#   SVCNODE_CONTROL=/run/svcnode/control.sock sh worker.sh ID TTL_IN_SECONDS
set -u
id=$1 ttl=$2 registered=

node() { # node METHOD PATH [JSON]
    curl --silent --show-error --fail-with-body --max-time 5 --unix-socket "$SVCNODE_CONTROL" \
        --request "$1" --data "${3-}" "http://localhost/v1/$2"
}

report() { # report JSON; the node may be away, and after that it may not know the service
    [ "$registered" ] || node PUT "services/$id" "{\"ttl\": \"${ttl}s\", \"name\": \"Worker in shell\"}" || return
    registered=
    node PUT "services/$id/status" "$1" && registered=yes
}

stop() {
    report '{"status": "down", "reason": "stopped"}' && node DELETE "services/$id"
    exit 0
}

trap stop INT TERM
while true; do
    report '{"status": "up"}'
    sleep "$((ttl / 3))" & # in the background, so that a signal is handled at once
    wait $! || true
done
