# limit: 180
# HTTP that is malformed, too large, too slow or meant to smuggle gets the right status, and nothing of it stays behind; so do mutations of valid requests.
. "$(dirname "$0")/daemon_lib.sh"
H=$T/h
FAKE_TARGET=step_us=0 FAKE_DRAFTER=step_us=0 start --http.socket="$H" --http.header_s=1 --http.body_s=1 --http.idle_s=2 --limits.max_frame=65536 --engine.context=256

# Status wanted, then the bytes as printf's format; a second answer would be a smuggled request's.
case_of() {
	status=$1
	shift
	printf "$@" | "$TOOLS/http_raw" -w 20000 "$H" >"$OUT" 2>&1
	grep -q "^HTTP/1.1 $status " "$OUT" || fail "not $status: $*"
	[ "$(grep -oc 'HTTP/1.1 [1-5][0-9][0-9] ' "$OUT")" = "${ANSWERS:-1}" ] || fail "$(grep -oc 'HTTP/1.1 [1-5][0-9][0-9] ' "$OUT") answers: $*"
	grep -q '\[end\]' "$OUT" || fail "the connection does not end: $*"
}
J='Content-Type: application/json\r\n'
P="POST /tokenize HTTP/1.1\r\nHost: x\r\n$J"
SECOND='GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'

# Request lines
case_of 400 'GARBAGE\r\n\r\n'
case_of 400 'GET  /health HTTP/1.1\r\nHost: x\r\n\r\n'
case_of 400 'GET /health\r\nHost: x\r\n\r\n'
case_of 400 'GET /hea lth HTTP/1.1\r\nHost: x\r\n\r\n'
case_of 400 'GET /health HTTP/1.1\nHost: x\n\r\n\r\n'
case_of 400 'GET /\001 HTTP/1.1\r\nHost: x\r\n\r\n'
case_of 505 'GET /health HTTP/2.0\r\nHost: x\r\n\r\n'
case_of 501 'BREW /health HTTP/1.1\r\nHost: x\r\n\r\n'
case_of 404 'CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n'
case_of 200 'GET http://x/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
case_of 200 '\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
case_of 405 'DELETE /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
grep -q '^Allow: GET, HEAD, OPTIONS' "$OUT" || fail "no Allow"

# Fields
case_of 400 'GET /health HTTP/1.1\r\n\r\n'
case_of 400 'GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n'
case_of 400 'GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer one-long-key\r\nauthorization: Bearer other-long-key\r\n\r\n'
case_of 400 "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n${J}Content-Length: 15\r\n\r\n{\"prompt\": \"a\"}"
case_of 400 'GET /health HTTP/1.1\r\nHost : x\r\n\r\n'
case_of 400 'GET /health HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n'
case_of 400 'GET /health HTTP/1.1\r\nHost: x\r\nX: a\000b\r\n\r\n'
case_of 400 'GET /health HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n'
case_of 400 'GET /health HTTP/1.1\r\nHost: x\r\nX(: a\r\n\r\n'
case_of 400 'GET /health HTTP/1.1\r\nHost: x\r\nnothing\r\n\r\n'
case_of 417 'GET /health HTTP/1.1\r\nHost: x\r\nExpect: the best\r\n\r\n'
case_of 431 "GET /health HTTP/1.1\r\nHost: x\r\n$(printf 'X: y\\r\\n%.0s' $(seq 101))\r\n"
case_of 431 "GET /health HTTP/1.1\r\nHost: x\r\nX: $(head -c 40000 /dev/zero | tr '\0' x)\r\n\r\n"

# Two programs that would see two different messages
case_of 400 "${P}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n$SECOND"
case_of 400 "${P}Content-Length: 15\r\nContent-Length: 15\r\n\r\n{\"prompt\": \"a\"}$SECOND"
case_of 400 "${P}Content-Length: 15, 15\r\n\r\n{\"prompt\": \"a\"}$SECOND"
case_of 400 "${P}Content-Length: +15\r\n\r\n{\"prompt\": \"a\"}$SECOND"
case_of 400 "${P}Content-Length: 0x0f\r\n\r\n{\"prompt\": \"a\"}$SECOND"
case_of 400 "${P}Content-Length: -1\r\n\r\n$SECOND"
case_of 400 "${P}Content-Length: 99999999999999999999\r\n\r\n$SECOND"
case_of 501 "${P}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n$SECOND"
case_of 501 "${P}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n$SECOND"
case_of 400 "${P}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n$SECOND"
case_of 400 "${P}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n$SECOND"
case_of 501 "${P}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n$SECOND"
case_of 400 "POST /tokenize HTTP/1.0\r\n${J}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n$SECOND"
for chunk in 'g\r\n' '\r\n' '0x5\r\n' '5 \r\n' '+5\r\n' '5\n' 'ffffffffffffffff\r\n' '3\r\nabcde\r\n' '3\r\nabc\n' '0\r\nX Y: z\r\n\r\n' '0\r\nX: z\n\r\n' '0\r\n x\r\n\r\n'; do
	case_of 400 "${P}Transfer-Encoding: chunked\r\n\r\n$chunk$SECOND"
done

# Bodies that are well framed
ANSWERS=2 case_of 200 "${P}Transfer-Encoding: chunked\r\n\r\n5;x=y\r\n{\"pro\r\nA\r\nmpt\": \"a\"}\r\n0\r\nTrailer: z\r\n\r\n$SECOND"
ANSWERS=2 case_of 411 "POST /tokenize HTTP/1.1\r\nHost: x\r\n${J}\r\n$SECOND"
ANSWERS=2 case_of 415 "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}$SECOND"
ANSWERS=2 case_of 415 "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}$SECOND"
ANSWERS=2 case_of 415 "${P}Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}$SECOND"
ANSWERS=2 case_of 404 "POST /nothing HTTP/1.1\r\nHost: x\r\n${J}Content-Length: 2\r\n\r\n{}$SECOND"
ANSWERS=3 case_of 100 "${P}Expect: 100-continue\r\nContent-Length: 15\r\n\r\n{\"prompt\": \"a\"}$SECOND"
case_of 413 "${P}Expect: 100-continue\r\nContent-Length: 70000\r\n\r\n"
case_of 413 "${P}Content-Length: 70000\r\n\r\n$(head -c 70000 /dev/zero | tr '\0' x)"
case_of 413 "${P}Transfer-Encoding: chunked\r\n\r\n$(printf '4000\\r\\n%s\\r\\n' "$(head -c 16384 /dev/zero | tr '\0' x)" "$(head -c 16384 /dev/zero | tr '\0' x)" \
	"$(head -c 16384 /dev/zero | tr '\0' x)" "$(head -c 16384 /dev/zero | tr '\0' x)" "$(head -c 16384 /dev/zero | tr '\0' x)")0\r\n\r\n"

# Slow ones: a head, a body; silence just ends
printf 'GET /health HTTP/1.1\r\nHost: x\r\nX: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n\r\n' | "$TOOLS/http_raw" -s 1 -d 100 -w 20000 "$H" >"$OUT"
grep -q '^HTTP/1.1 408 ' "$OUT" || fail "a head of one byte each 100 ms was waited for"
printf "${P}Content-Length: 60\r\n\r\n{\"prompt\": \"" | "$TOOLS/http_raw" -w 20000 "$H" >"$OUT"
grep -q '^HTTP/1.1 408 ' "$OUT" || fail "half a body was waited for"
printf '' | "$TOOLS/http_raw" -w 20000 "$H" >"$OUT"
grep -q '\[end\]' "$OUT" || fail "a silent connection stays"
# One byte at a time is fine when it is quick.
printf "${P}Connection: close\r\nContent-Length: 15\r\n\r\n{\"prompt\": \"a\"}" | "$TOOLS/http_raw" -s 1 -w 20000 "$H" >"$OUT"
grep -q '^HTTP/1.1 200 ' "$OUT" || fail "byte by byte"

# Mutations of valid requests: an answer that is HTTP with a known status, or the end. (10,000 by hand: FUZZ=10000.)
for seed in 1 2; do
	"$TOOLS/http_raw" "$H" fuzz $seed $((${FUZZ:-2000} / 2)) >"$OUT" || fail "a mutation"
done
# Memory does not grow with more of them.
before=$(awk '/VmRSS/ { print $2 }' "/proc/$PID/status")
"$TOOLS/http_raw" "$H" fuzz 3 $((${FUZZ:-2000} / 2)) >"$OUT" || fail "a mutation"
after=$(awk '/VmRSS/ { print $2 }' "/proc/$PID/status")
[ "$B" = build-san ] || [ "$after" -lt $((before + 4096)) ] || fail "memory grew from $before to $after kB"
printf "$SECOND" | "$TOOLS/http_raw" -w 20000 "$H" >"$OUT"
grep -q '^HTTP/1.1 200 ' "$OUT" || fail "it does not answer any more"
stop
