#!/usr/bin/env bash
# Starts actors on this machine and starts each again when it dies, until the run is over or Ctrl-C.
#
#   on the machine that hosts the run (a private network device, or none for this machine alone):
#     agentkit node replay dqn --env gymnasium:CartPole-v1 --steps 100_000 --run runs/mine --listen wg0
#     agentkit node learner --run-id-file runs/mine/board.json
#   on any machine that can reach it, with the run id in a file that only you can read:
#     launch/actors_by_hand.sh HOST:7700 run-id.txt 0 8       # actors 0 to 7
#
# Give each machine other indices: exploration differs by index. On the host's own machine "-" as the address and
# RUN/board.json as the file will do. Other machines need --listen: an SSH tunnel does not replace it (README.md).
# Exit code: 0 when the run is over, 2 when an actor says that starting again cannot help, 130 after Ctrl-C.
set -uo pipefail

if (($# != 4)); then
  echo "Usage: $0 HOST:PORT|- RUN_ID_FILE FIRST_INDEX NUMBER" >&2
  exit 2
fi
address=$1 run_id_file=$2 first=$3 number=$4
connect=()
[[ $address == - ]] || connect=(--connect "$address")
max_failures=${MAX_FAILURES:-20} # in a row, each within a minute of its start

# One actor, again and again. The secret is in the file alone: an argument would be seen in the process list.
keep_actor() {
  local index=$1 code delay=1 failures=0 started child
  trap 'kill -TERM "$child" 2>/dev/null; wait "$child"; exit 130' TERM
  while true; do
    started=$SECONDS
    agentkit node actor "${connect[@]}" --run-id-file "$run_id_file" --index "$index" &
    child=$!
    wait "$child"
    code=$?
    case $code in
      0 | 2) return "$code" ;;
    esac
    if ((SECONDS - started >= 60)); then
      delay=1 failures=0
    fi
    if ((++failures > max_failures)); then
      echo "actor $index: gives up after $failures failures in a row; the last exit code was $code" >&2
      return 1
    fi
    echo "actor $index: exit code $code, starts again in $delay s" >&2
    sleep "$delay" &
    child=$!
    wait "$child"
    delay=$((delay * 2 < 15 ? delay * 2 : 15))
  done
}

keepers=()
stop() {
  trap '' INT TERM
  kill -TERM "${keepers[@]}" 2>/dev/null
  wait
  exit 130
}
trap stop INT TERM
for ((index = first; index < first + number; index++)); do
  keep_actor "$index" &
  keepers+=($!)
done
worst=0
for keeper in "${keepers[@]}"; do
  wait "$keeper"
  code=$?
  ((code > worst)) && worst=$code
done
exit "$worst"
