# limit: 120
# tandem metrics: well formed at any time, the figures are those of what was asked, counters only grow, and promtool agrees where it is installed.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
CHECK=$TOOLS/metrics_check

metrics() { # file; not the text of a moment ago, which is kept for 200 ms
	sleep 0.21
	"$TANDEM" metrics >"$1" 2>"$T/err" || fail "tandem metrics: $(cat "$T/err")"
}
# value FILE SERIES: the number of a series, by its beginning up to the blank
value() {
	grep -v '^#' "$1" | grep -F -- "tandem_$2 " | sed 's/.* //'
}
# is FILE SERIES VALUE
is() {
	v=$(value "$1" "$2")
	[ "$v" = "$3" ] || fail "tandem_$2 is '$v' and not $3"
}

# While it loads: known at once, not ready. The workers are fakes that take their time.
FAKE_TARGET=load_ms=600 start --limits.queue=1 --engine.slots=1
metrics "$T/m0"
"$CHECK" "$T/m0" >/dev/null || fail "while loading"
is "$T/m0" 'ready' 0
is "$T/m0" 'state{state="loading"}' 1
"$TANDEM" status --wait 60 >/dev/null || fail "not ready"
metrics "$T/m1"
is "$T/m1" 'ready' 1
is "$T/m1" 'state{state="loading"}' 0
is "$T/m1" 'worker_state{worker="target",state="ready"}' 1
stop

real --engine.slots=2 --engine.context=2048 --http.socket="$T/http" "--tenant idle.weight=2" "--tenant idle.uids=4000000"
metrics "$T/m1"
"$CHECK" "$T/m1" >/dev/null || fail "before the first request"
is "$T/m1" 'requests_total{tenant="idle"}' 0
"$TANDEM" status --json | tr -d ' \n' | grep -q '{"name":"idle","weight":2.0,' || fail "a tenant that asks nothing is not told"
"$TANDEM" run --no-think -g --ignore-eos -n 24 "How do I list files?" >/dev/null || fail "run"
"$TANDEM" run --no-think -g -n 24 --stop e "How do I list files?" >/dev/null || fail "run with a stop string"
"$TANDEM" run -n 0 "x" >/dev/null 2>&1 && fail "max_tokens 0 was taken"
metrics "$T/m2"
"$CHECK" "$T/m1" "$T/m2" >"$OUT" || fail "after requests"
tenant=$(sed -n 's/^tandem_requests_total{\(tenant="[^"]*"\)} 2$/\1/p' "$T/m2")
[ -n "$tenant" ] || fail "no tenant with two requests: $(grep requests_total "$T/m2")"
is "$T/m2" "requests_ended_total{$tenant,outcome=\"length\"}" 1
is "$T/m2" "requests_ended_total{$tenant,outcome=\"stop\"}" 1
is "$T/m2" "requests_refused_total{$tenant,code=\"invalid_argument\"}" 1
is "$T/m2" 'errors_total{code="invalid_argument"}' 1
is "$T/m2" "queue_wait_seconds_count{$tenant}" 2
is "$T/m2" "time_to_first_token_seconds_count{$tenant}" 2
written=$(value "$T/m2" "output_tokens_total{$tenant}")
[ "$(value "$T/m2" "inter_token_seconds_count{$tenant}")" = $((written - 2)) ] || fail "$written tokens, but not as many gaps and first tokens"
[ "$written" = "$("$TANDEM" status --json | sed -n 's/^  "output_tokens": \([0-9]*\).*/\1/p')" ] || fail "metrics and status tell different numbers of tokens"
# drafts by position add up to all of them
sum() {
	sed -n "s/^tandem_$1{.*} //p" "$T/m2" | awk '{ s += $1 } END { print s + 0 }'
}
[ "$(sum draft_position_drafted_total)" = "$(sum drafted_tokens_total)" ] || fail "drafts by position don't add up"
[ "$(sum draft_position_accepted_total)" = "$(sum accepted_tokens_total)" ] || fail "accepted drafts by position don't add up"
[ "$(sum drafted_tokens_total)" -gt 0 ] || fail "nothing was drafted"
for stage in draft wait verify commit; do
	value "$T/m2" "cycle_stage_seconds_total{stage=\"$stage\"}" | grep -q '^[0-9]*\.[0-9]*[1-9]' || fail "no time in $stage"
done

# One that runs while the figures are read; its client hangs up.
"$TANDEM" run --band batch --no-think --ignore-eos -n 1900 "How do I list files?" >/dev/null 2>&1 &
run=$!
tries=0
until metrics "$T/m3" && [ "$(value "$T/m3" "requests_running{$tenant,band=\"batch\"}")" = 1 ]; do
	tries=$((tries + 1))
	[ $tries -lt 200 ] || fail "the running request isn't told"
	sleep 0.02
done
[ "$(value "$T/m3" kv_pages_used)" -gt 0 ] || fail "it has no pages"
is "$T/m3" slots_used 1
kill -9 $run
tries=0
until metrics "$T/m4" && [ "$(value "$T/m4" "requests_ended_total{$tenant,outcome=\"lost\"}")" = 1 ]; do
	tries=$((tries + 1))
	[ $tries -lt 200 ] || fail "the lost request isn't told"
	sleep 0.02
done
"$CHECK" "$T/m2" "$T/m4" >/dev/null || fail "after a hang-up"

# A worker that dies is counted; counters of cycles go on.
kill -9 "$("$TANDEM" status --json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | head -n 1)"
"$TANDEM" run --no-think -g -n 8 "How do I list files?" >/dev/null || fail "run after a death"
metrics "$T/m5"
"$CHECK" "$T/m4" "$T/m5" >/dev/null || fail "after a worker's death"
is "$T/m5" 'worker_restarts_total{worker="target"}' 1

# docs/metrics.md tells each family, by its type, and no other.
sed -n 's/^# TYPE //p' "$T/m5" | sort >"$T/is"
awk -F '|' '/^## / { on = /Families/ } on && /^\| `tandem_/ { gsub(/[` ]/, "", $2); gsub(/ /, "", $3); n = split($2, name, ","); for (i = 1; i <= n; i++) print name[i], $3 }' \
	"$ROOT/docs/metrics.md" | sort >"$T/told"
diff "$T/told" "$T/is" >"$T/diff" || fail "docs/metrics.md (<) and the daemon (>) tell different families: $(cat "$T/diff")"

# The same over HTTP, with the type that Prometheus wants; the connection that asks is told.
if command -v curl >/dev/null; then
	sleep 0.21
	curl -s -D "$T/head" --unix-socket "$T/http" http://localhost/metrics >"$T/m6" || fail "GET /metrics"
	grep -q '^HTTP/1.1 200' "$T/head" || fail "GET /metrics: $(cat "$T/head")"
	grep -qi '^content-type: text/plain; version=0.0.4' "$T/head" || fail "GET /metrics: $(cat "$T/head")"
	"$CHECK" "$T/m5" "$T/m6" >/dev/null || fail "GET /metrics"
	is "$T/m6" 'connections{protocol="http"}' 1
fi
! command -v promtool >/dev/null || promtool check metrics <"$T/m5" >"$OUT" 2>&1 || fail "promtool: $(cat "$OUT")"
stop
code 3 metrics
one_line "no daemon"
code 2 metrics now
