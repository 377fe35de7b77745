# limit: 120
# Ends over HTTP: a client that hangs up at any stage leaves nothing behind; a daemon that ends refuses what waits and what comes, and what runs ends whole.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/http_lib.sh"

# NAME, options for http_raw, JSON: in the background, what comes in $T/NAME; its process is $ASKED.
ask() {
	printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "${#3}" "$3" >"$T/$1.in"
	: >"$T/$1"
	"$TOOLS/http_raw" $2 -w 60000 "$H" <"$T/$1.in" >"$T/$1" 2>&1 &
	ASKED=$!
}
hang_up() { # process
	kill -9 "$1"
	wait "$1" 2>/dev/null
}
status() { # until it says so
	printf 'timeout 60000\ngreet 0\nwait_status "%s"\n' "$1" | "$TOOLS/rawclient" "$SOCK" >"$OUT" 2>"$T/err" || fail "not '$1': $(tail -n 1 "$OUT" | cut -c 1-200)"
}
comes() { # file, words in it
	tries=0
	until grep -q -- "$2" "$T/$1"; do
		tries=$((tries + 1))
		[ $tries -lt 1200 ] || fail "no '$2' in the answer: $(cat "$T/$1")"
		sleep 0.05
	done
}
nothing_left() {
	status "used=0 queued=0"
	tries=0
	until printf 'GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' | "$TOOLS/http_raw" -w 60000 "$H" >"$OUT" && grep -q '^tandem_kv_pages_used 0' "$OUT" &&
		! grep -q '^tandem_requests_\(running\|waiting\){[^}]*} [1-9]' "$OUT"; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || fail "$1: something stays: $(grep '^tandem_kv_pages_used\|^tandem_requests_[rw]' "$OUT")"
		sleep 0.05
	done
}

# ---- hang-ups. A step takes 100 ms, so an answer of 3000 tokens or a prompt of as many, 64 at a time, does not end by itself here
export FAKE_TARGET=step_us=100000
start --http.socket="$H" --engine.slots=2 --engine.chunk=64 --engine.context=4096
long='"max_tokens": 3000, "ignore_eos": true, "draft_tokens": 0'
ask a '' "{\"prompt\": \"a b c\", $long, \"stream\": true}"
a=$ASKED
ask b '' "{\"prompt\": \"a b c\", $long}"
b=$ASKED
status "used=2 queued=0"
ask c '' "{\"prompt\": \"a b c\", $long, \"stream\": true}"
status "used=2 queued=1"
hang_up $ASKED # waiting
status "used=2 queued=0"
comes a '"text": "'
hang_up $a # streaming
hang_up $b # a whole answer, half made
nothing_left "one that waited, one that streamed, one that was half made"

words=$(printf 'word %.0s' $(seq 3000))
ask a '' "{\"prompt\": \"$words\", \"max_tokens\": 1, \"stream\": true}"
status "used=1 queued=0"
hang_up $ASKED
nothing_left "a long prompt at work"
! grep -q '"text"' "$T/a" || fail "the prompt was done before the client hung up: nothing was tested"

for stream in false true; do
	ask a '' "{\"prompt\": \"a b c\", $long, \"n\": 5, \"stream\": $stream}"
	status "used=2 queued=3"
	[ $stream = false ] || comes a '"text": "'
	hang_up $ASKED
	nothing_left "several choices, stream $stream"
done
# A body that is still with a job, or not whole: nobody asks for it any more.
printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"prompt": "' | "$TOOLS/http_raw" -h 50 "$H" >/dev/null
for i in 1 2 3 4; do "$TOOLS/http_raw" -h 1 "$H" <"$T/a.in" >/dev/null; done
nothing_left "half a body, and hang-ups at once"
ask a '' '{"prompt": "a b c", "max_tokens": 2}'
comes a '"finish_reason": "length"'
hang_up $ASKED
stop

# ---- the daemon's end
export FAKE_TARGET=step_us=10000
start --http.socket="$H" --engine.slots=2 --engine.watchdog_s=120 --tandem.drain_s=120
mkfifo "$T/late.in"
"$TOOLS/http_raw" -i -w 60000 "$H" <"$T/late.in" >"$T/late" 2>&1 &
late=$!
exec 8>"$T/late.in"
printf 'GET /version HTTP/1.1\r\nHost: x\r\n\r\n' >&8
comes late '"version"'
! grep -q 'Connection: close' "$T/late" || fail "the connection was not to be kept"
ask many '' '{"prompt": "a b c", "max_tokens": 100, "ignore_eos": true, "draft_tokens": 0, "n": 3, "stream": true}' # the third choice waits for a slot
many=$ASKED
comes many '"text": "'
status "used=2 queued=1"
target=$(sed -n 's/.* pid_target=\([0-9]*\) .*/\1/p' "$OUT" | tail -n 1)
kill -STOP "$target" # time stands still for the answers
ask whole '' '{"prompt": "a b c", "max_tokens": 60, "ignore_eos": true, "draft_tokens": 0}'
whole=$ASKED
status "used=2 queued=2"
kill -TERM "$PID"
wait $whole || fail "http_raw"
comes whole '^HTTP/1.1 503 '
for word in 'Connection: close' 'Retry-After: ' '"code": "draining"' '\[end\]'; do comes whole "$word"; done
: >"$T/late"
printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n{"prompt": "a", "max_tokens": 2}' >&8
wait $late || fail "http_raw"
exec 8>&-
for word in 'HTTP/1.1 503 ' 'Connection: close' 'Retry-After: ' '"code": "draining"' '\[end\]'; do comes late "$word"; done
kill -CONT "$target"
wait $many || fail "http_raw"
comes many 'data: \[DONE\]'
! grep -q '"error"' "$T/many" || fail "a stream was broken off: $(tail -n 3 "$T/many")"
for i in 0 1 2; do comes many "\"index\": $i, .*\"finish_reason\": \"length\""; done
ended
echo "nothing stays behind, and nothing is broken off"
