# limit: 120
# alone
# HTTP connections: who asks on TCP, pings, errors in the middle of a stream, clients that read slowly, many at once.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/http_lib.sh"
PORT=$((20000 + $$ % 20000))

# ADDRESS, options for http_raw, path, header lines, body
ask() {
	printf 'POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%s' "$3" "$4" "${#5}" "$5" |
		"$TOOLS/http_raw" $2 "$1" >"$OUT" 2>&1 || fail "http_raw $1"
}

A='{"prompt": "Hello there", "max_tokens": 2}'
cat >"$T/ini" <<X
[tenant alice]
api_keys = key-of-alice
[tenant bob]
api_keys = key-of-bob, another-of-bob
X
chmod 600 "$T/ini"

# Keys
start --config="$T/ini" --http.socket="$H" --http.listen=127.0.0.1:$PORT
TCP=127.0.0.1:$PORT
ask $TCP "-w 20000" /v1/completions '' "$A"
has 'HTTP/1.1 401 ' '"code": "invalid_api_key"' 'WWW-Authenticate: Bearer' '"type": "authentication_error"'
ask $TCP "-w 20000" /v1/completions 'Authorization: Bearer nonsense\r\n' "$A"
has 'HTTP/1.1 401 '
ask $TCP "-w 20000" /v1/completions 'Authorization: Basic key-of-alice\r\n' "$A"
has 'HTTP/1.1 401 '
ask $TCP "-w 20000" /v1/completions 'Authorization: Bearer key-of-alic\r\n' "$A"
has 'HTTP/1.1 401 '
ask $TCP "-w 20000" /v1/completions 'Authorization: Bearer another-of-bob\r\n' "$A"
has 'HTTP/1.1 200 '
ask "$H" "-w 20000" /v1/completions '' "$A"
has 'HTTP/1.1 200 '
printf 'GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: bearer key-of-alice\r\nConnection: close\r\n\r\n' |
	"$TOOLS/http_raw" -w 20000 $TCP >"$OUT"
has '{"status": "ok"}' 'tandem_requests_total{tenant="bob"'
stop

# Who refuses users that nobody named doesn't let them in by the port, unless it is said.
start --http.listen=127.0.0.1:$PORT --tenants.unknown=refuse
ask $TCP "-w 20000" /v1/completions '' "$A"
has 'HTTP/1.1 401 '
ask $TCP "-w 20000" /v1/completions 'Authorization: Bearer key-of-alice\r\n' "$A"
has 'HTTP/1.1 401 '
stop
start --http.listen=127.0.0.1:$PORT --tenants.unknown=refuse --http.require_key=no
ask $TCP "-w 20000" /v1/completions '' "$A"
has 'HTTP/1.1 200 '
stop

# None needed: anything goes, but not a name that is not this machine's
start --http.listen=127.0.0.1:$PORT --http.socket="$H"
ask $TCP "-w 20000" /v1/completions 'Authorization: Bearer whatever\r\n' "$A"
has 'HTTP/1.1 200 '
printf 'GET /v1/models HTTP/1.1\r\nHost: evil.example:%s\r\nConnection: close\r\n\r\n' "$PORT" | "$TOOLS/http_raw" -w 20000 $TCP >"$OUT"
has 'HTTP/1.1 403 '
printf 'GET /v1/models HTTP/1.1\r\nHost: localhost:%s\r\nConnection: close\r\n\r\n' "$PORT" | "$TOOLS/http_raw" -w 20000 $TCP >"$OUT"
has 'HTTP/1.1 200 '
! tandemd_run --tandem.socket="$T/s2" --tandem.runtime_dir="$T/r2" --http.listen=0.0.0.0:1 >"$T/said" 2>&1 || fail "it listens everywhere"
grep -q 'http.allow_remote' "$T/said" || fail "no word of http.allow_remote: $(cat "$T/said")"
stop

# All choices of a request wait or none; a connection too many is told so
FAKE_TARGET=step_us=50000 start --http.socket="$H" --engine.slots=2 --limits.queue=3 --tandem.max_connections=1
ask "$H" "-w 20000" /v1/completions '' '{"prompt": "Hello there", "max_tokens": 400, "ignore_eos": true, "n": 9}'
has 'HTTP/1.1 429 ' 'Retry-After: ' '"type": "rate_limit_error"' '_full"'
tries=0
until printf 'GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' | "$TOOLS/http_raw" -w 20000 "$H" >"$OUT" &&
	grep -q '^tandem_up 1' "$OUT" && ! grep -q '^tandem_requests_\(running\|waiting\){[^}]*} [1-9]' "$OUT"; do
	tries=$((tries + 1))
	[ $tries -lt 200 ] || fail "choices of a refused request stay"
	sleep 0.05
done
printf '' | "$TOOLS/http_raw" -r 3000 -w 1 "$H" >/dev/null &
sleep 1
printf 'GET /health HTTP/1.1\r\nHost: x\r\n\r\n' | "$TOOLS/http_raw" -w 20000 "$H" >"$OUT"
has 'HTTP/1.1 503 ' 'Retry-After: 1' 'max_connections'
wait $!
stop

# Pings while a stream has nothing to say; an error in the middle of it
FAKE_TARGET=step_us=700000 start --http.socket="$H" --http.ping_s=1
ask "$H" "-w 30000" /v1/completions '' '{"prompt": "Hello there", "max_tokens": 400, "ignore_eos": true, "draft_tokens": 0, "n": 4, "stream": true, "deadline_ms": 3000}'
has 'HTTP/1.1 200 ' '"text": "Hello' 'data: {"error": {"message": "' '"code": "deadline_exceeded"' '[end]'
hasnt '[DONE]'
stop
FAKE_TARGET=step_us=2500000 start --http.socket="$H" --http.ping_s=1
ask "$H" "-w 30000" /v1/completions '' '{"prompt": "Hello there", "max_tokens": 1, "stream": true}'
has ': still here' '"text": "Hello' '[DONE]'
stop

# Slow readers: what waits is bounded, and nothing is lost; for too long: the end
LONG='{"prompt": "Hello there", "max_tokens": 3000, "ignore_eos": true, "stream": true, "n": 4}'
FAKE_TARGET=step_us=0 FAKE_DRAFTER=step_us=0 start --http.socket="$H" --limits.output_buffer=16384 --limits.slow_reader_s=2
ask "$H" "-r 1000 -w 30000" /v1/completions '' "$LONG"
has '[DONE]' '"index": 3, "text": "", "logprobs": null, "finish_reason": "length"'
grep -q 'reads slowly' "$LOG" || fail "nobody was slow"
words=$(grep -o '"text": "[^"]*"' "$OUT" | grep -o 'Hello\|there' | wc -l)
[ "$words" = 12000 ] || fail "$words words came of 12000"
# More bytes than the kernel's buffers take, however few pieces they come in.
LONG="${LONG%\}}, \"logprobs\": 5}"
printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#LONG}" "$LONG" >"$T/in"
"$TOOLS/http_raw" -r 120000 -w 30000 "$H" <"$T/in" >"$OUT" 2>&1 &
asleep=$!
tries=0
until grep -q 'has not read for 2 s' "$LOG"; do
	tries=$((tries + 1))
	[ $tries -lt 1200 ] || fail "a reader that sleeps is not dropped"
	sleep 0.05
done
kill -USR1 $asleep # reads
wait $asleep || fail "http_raw"
hasnt '[DONE]'
stop

# Many: idle ones are kept, streams are served, memory stays
FAKE_TARGET=step_us=10000 start --http.socket="$H" --engine.slots=16 --engine.context=512
printf '{"prompt": "some words to repeat", "max_tokens": 300, "ignore_eos": true, "stream": true}' >"$T/body"
"$TOOLS/http_raw" "$H" load 0 4 100000 "$T/body" >"$OUT" || fail "4 streams"
few=$(sed -n 's/.*p99 \([0-9]*\).*/\1/p' "$OUT")
"$TOOLS/http_raw" "$H" load 200 16 100000 "$T/body" >"$OUT" || fail "16 streams"
before=$(awk '/VmRSS/ { print $2 }' "/proc/$PID/status")
"$TOOLS/http_raw" "$H" load 200 16 100000 "$T/body" >"$OUT" || fail "16 streams"
after=$(awk '/VmRSS/ { print $2 }' "/proc/$PID/status")
many=$(sed -n 's/.*p99 \([0-9]*\).*/\1/p' "$OUT")
[ "$many" -lt $((few * 5 + 20000)) ] || fail "gaps grew from $few to $many us"
[ "$B" = build-san ] || [ "$after" -lt $((before + 2048)) ] || fail "memory grew from $before to $after kB"
stop
