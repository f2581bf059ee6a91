#!/usr/bin/env bash
# What people's scripts do with tritonserver: start it in the background, wait for it by curl, look for lines in its log
# and metrics, and stop it by a signal. Each check that fails prints a line FAILED; the exit status is their number.
#   SERVER      the command, such as "nereid serve"
#   REPOSITORY  has the model slow, which takes a second
#   BROKEN      is a repository with a model that does not load
#   HTTP GRPC METRICS  are free ports
set -u
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
same() { [ "$2" == "$3" ] || fail "$1: got '$2', want '$3'"; }
logged() { grep -q "$1" "$SERVER_LOG" || fail "no line '$1' in the log: $(tail -n 20 "$SERVER_LOG")"; }

SERVER_LOG=$(mktemp)
SERVER_PID=0
trap 'kill -9 $SERVER_PID 2>/dev/null; rm -f "$SERVER_LOG"' EXIT
URL=127.0.0.1:$HTTP/v2
PORTS="--http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1 --http-port=$HTTP --grpc-port=$GRPC --metrics-port=$METRICS"

# run_server starts the server with further flags.
run_server() {
  $SERVER $PORTS "$@" >"$SERVER_LOG" 2>&1 &
  SERVER_PID=$!
}

# wait_for_server_ready compares all that curl prints with the status.
wait_for_server_ready() {
  for _ in $(seq 120); do
    kill -0 $SERVER_PID 2>/dev/null || { fail "the server ended: $(cat "$SERVER_LOG")"; return 1; }
    [ "$(curl -s -w '%{http_code}' "$URL/health/ready")" == "200" ] && return 0
    sleep 0.25
  done
  fail "the server is not ready: $(cat "$SERVER_LOG")"
  return 1
}

BODY='{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[7]}]}'
status() { curl -s -o /dev/null -w '%{http_code}' "$@"; }

# Without a server: help, the version, mistakes.
$SERVER --help | grep -q -- --model-repository || fail "--help does not name --model-repository"
version=$($SERVER --version) || fail "--version: exit status $?"
[[ $version =~ [0-9]+\.[0-9]+\.[0-9]+ ]] || fail "--version prints '$version'"
$SERVER --no-such-flag >/dev/null 2>&1 && fail "an unknown flag is taken"
curl -sf "$URL/health/live" && fail "a server answers before it is started"

# A server and its control of models.
run_server --model-repository="$REPOSITORY" --model-control-mode=explicit --load-model=slow
if wait_for_server_ready; then
  same "live" "$(curl -s -w '%{http_code}' "$URL/health/live")" 200
  same "a ready model" "$(curl -s -w '%{http_code}' "$URL/models/slow/ready")" 200
  same "a model that is not there" "$(status "$URL/models/none/ready")" 400
  curl -fs "$URL/models/slow" >/dev/null || fail "metadata: curl -f ends with $?"
  curl -fs "$URL/models/none" >/dev/null && fail "metadata of a model that is not there: curl -f ends with 0"
  same "an unload" "$(curl -s -w '%{http_code}' -X POST "$URL/repository/models/slow/unload")" 200
  same "a load" "$(curl -s -w '%{http_code}' -X POST "$URL/repository/models/slow/load")" 200
  same "a load of no model" "$(status -X POST "$URL/repository/models/none/load")" 500
  same "the index" "$(curl -s -X POST "$URL/repository/index" | grep -c '"state":"READY"')" 1
  same "an inference" "$(status "$URL/models/slow/infer" -d "$BODY")" 200
  for _ in $(seq 40); do # an inference counts once it has ended
    metric=$(curl -s "127.0.0.1:$METRICS/metrics" | grep 'nv_inference_request_success{model="slow",version="1"}' | awk '{print $2}')
    [ "$metric" == 1 ] && break
    sleep 0.25
  done
  same "nv_inference_request_success" "$metric" 1
  same "a metric's help" "$(curl -s "127.0.0.1:$METRICS/metrics" | grep -c '^# HELP nv_inference_count ')" 1
  logged "Started GRPCInferenceService at 127.0.0.1:$GRPC"
  logged "Started HTTPService at 127.0.0.1:$HTTP"
  logged "Started Metrics Service at 127.0.0.1:$METRICS"
  logged "successfully unloaded 'slow' version 1"
  same "lines that say that the model is loaded" "$(grep -c "successfully loaded 'slow'" "$SERVER_LOG")" 2

  # SIGINT: what runs ends, and open connections are served on.
  exec 3<>"/dev/tcp/127.0.0.1/$HTTP"
  printf 'GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n' >&3
  IFS= read -r -t 20 line <&3
  same "live on an open connection" "${line%$'\r'}" "HTTP/1.1 200 OK"
  while IFS= read -r -t 20 line <&3 && [ "${line%$'\r'}" ]; do :; done
  curl -s -o /dev/null -w '%{http_code}' "$URL/models/slow/infer" -d "$BODY" >"$SERVER_LOG.answer" &
  CURL_PID=$!
  for _ in $(seq 80); do
    curl -s "127.0.0.1:$METRICS/metrics" | grep -q '^nereid_gateway_in_flight_requests 1' && break
    sleep 0.05
  done
  kill -INT $SERVER_PID
  for _ in $(seq 80); do
    grep -q "Waiting for in-flight requests to complete." "$SERVER_LOG" && break
    sleep 0.05
  done
  printf 'POST /v2/models/slow/infer HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%s' ${#BODY} "$BODY" >&3
  IFS= read -r -t 20 line <&3
  same "an inference on an open connection after SIGINT" "${line%$'\r'}" "HTTP/1.1 200 OK"
  exec 3>&-
  wait $CURL_PID
  same "the inference that was in flight" "$(cat "$SERVER_LOG.answer")" 200
  rm -f "$SERVER_LOG.answer"
  wait $SERVER_PID
  same "the exit status after SIGINT" $? 0
  logged "Timeout 30: Found 1 model versions that have in-flight inferences"
  logged "Timeout 30: Found 1 live models and 0 in-flight non-inference requests"
fi

# SIGTERM ends a server too, and the log may be a file.
FILE=$SERVER_LOG.file
run_server --model-repository="$REPOSITORY" --log-file="$FILE" --repository-poll-secs=0 --metrics-config=summary_quantiles=half
if wait_for_server_ready; then
  grep -q "successfully loaded 'slow'" "$FILE" || fail "--log-file lacks the load"
  grep -q "Started HTTPService at" "$SERVER_LOG" && fail "the log goes to standard error beside --log-file"
  kill $SERVER_PID
  wait $SERVER_PID
  same "the exit status after SIGTERM" $? 0
fi
rm -f "$FILE"

# A model that does not load ends the start, unless that is allowed.
run_server --model-repository="$BROKEN"
wait $SERVER_PID
same "the exit status of a start that fails" $? 1
logged "failed to load all models"
grep -q "Started HTTPService at" "$SERVER_LOG" && fail "a start that fails says that it serves"
run_server --model-repository="$BROKEN" --exit-on-error=false --strict-readiness=false
if wait_for_server_ready; then
  same "the model that did not load" "$(status "$URL/models/broken/ready")" 400
  kill $SERVER_PID
  wait $SERVER_PID
fi
exit $failures
