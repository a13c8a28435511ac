#!/usr/bin/env bash
# Runs run_workload.py on every host of a list, by ssh or pdsh: one torchrun per host, with the rendezvous on the first.
#
#   scripts/run_on_hosts.sh --hosts iplist --nproc 8 -- run w_workload.csv --results results
#
# The list has one host name or address per line; blank lines and lines that begin with # are ignored. The project and its
# Python must have the same path on every host. No line of the list and no argument is interpreted by a shell.
set -euo pipefail

usage="usage: $0 --hosts FILE [--nproc N] [--port P] [--torchrun PATH] [--pdsh] [--dry-run] -- VERB ARGUMENT..."
fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

hosts_file="" nproc=8 port=29400 torchrun=torchrun by=ssh dry_run=""
while (($#)); do
    case "$1" in
        --hosts) hosts_file="${2-}" && shift 2 || fail "$usage" ;;
        --nproc) nproc="${2-}" && shift 2 || fail "$usage" ;;
        --port) port="${2-}" && shift 2 || fail "$usage" ;;
        --torchrun) torchrun="${2-}" && shift 2 || fail "$usage" ;;
        --pdsh) by=pdsh && shift ;;
        --dry-run) dry_run=1 && shift ;;
        --) shift && break ;;
        *) fail "$usage" ;;
    esac
done
(($#)) || fail "$usage"
[[ -f $hosts_file ]] || fail "--hosts: $hosts_file is no file"
[[ $nproc =~ ^[1-9][0-9]{0,3}$ ]] || fail "--nproc: a number of GPUs a host, not $nproc"
[[ $port =~ ^[1-9][0-9]{0,4}$ ]] || fail "--port: a number, not $port"

hosts=()
while IFS= read -r line || [[ -n $line ]]; do
    line="${line//[[:space:]]/}"
    [[ -z $line || $line == \#* ]] && continue
    [[ $line =~ ^[A-Za-z0-9][A-Za-z0-9._:-]*$ ]] || fail "$hosts_file: $(printf %q "$line") is no host"
    hosts+=("$line")
done <"$hosts_file"
((${#hosts[@]})) || fail "$hosts_file: holds no host"

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
launch=("$torchrun" "--nnodes=${#hosts[@]}" "--nproc-per-node=$nproc" --rdzv-backend=c10d
    "--rdzv-endpoint=${hosts[0]}:$port" "--rdzv-id=run_workload" run_workload.py "$@")
command="cd $(printf %q "$root") && exec$(printf ' %q' "${launch[@]}")"

if [[ $by == pdsh ]]; then
    # a % would be one of pdsh's own words
    start=(pdsh -S -R ssh -w "$(IFS=, && printf %s "${hosts[*]}")" "${command//%/%%}")
    [[ -n $dry_run ]] && { printf '%q ' "${start[@]}" && echo && exit 0; }
    exec "${start[@]}"
fi

running=()
for host in "${hosts[@]}"; do
    start=(ssh -o BatchMode=yes -- "$host" "$command")
    if [[ -n $dry_run ]]; then
        printf '%q ' "${start[@]}" && echo
    else
        "${start[@]}" &
        running+=($!)
    fi
done
trap 'kill "${running[@]}" 2>/dev/null || true' INT TERM
status=0
for place in "${!running[@]}"; do
    wait "${running[$place]}" || {
        status=$?
        printf 'error: %s ended with status %s\n' "${hosts[$place]}" "$status" >&2
    }
done
exit "$status"
