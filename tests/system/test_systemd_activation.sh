# limit: 120
# Listening sockets come from the service manager: by name, or by what they are; who connects before the start, or during a restart, waits and is served.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/systemd_lib.sh"

export FAKE_DRAFTER=step_us=200
# ---- sockets come from the manager: who connects before the start waits and is served; the file is not ours to remove
export FAKE_TARGET=step_us=1000,load_ms=500 FAKE_DRAFTER=step_us=200
SOCK=$T/handed
for name in tandem tandemd.socket; do # by name, and by what it is
	rm -f "$SOCK"
	manage unix=$name:$SOCK abstract=1 -- --tandem.socket="$T/unused"
	client <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=5
until "tag=1 finish reason=2"
END
	sleep 0.2
	tell start
	answered
	see '^state active'
	[ ! -e "$T/unused" ] || fail "a socket of its own beside the one that was handed over"
	# Over a restart nobody is refused: who comes meanwhile waits.
	tell restart
	see '^say STOPPING=1'
	raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=5
until "tag=1 finish reason=2"
END
	see '^state active'
	tell stop
	see '^state inactive'
	[ -S "$SOCK" ] || fail "the manager's socket file is gone"
	manage_end
done

# ---- HTTP's sockets: by name on Unix and TCP, and TCP by what it is; a passed one takes the place of the configured one
health() {
	printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' | "$TOOLS/http_raw" "$1" >"$OUT" 2>"$T/err" || fail "$1: $(cat "$T/err")"
	grep -q '^HTTP/1.1 200 ' "$OUT" || fail "$1 does not answer: $(head -n 1 "$OUT")"
}
export FAKE_TARGET=step_us=1000
for name in http-tcp something; do
	rm -f "$SOCK" "$T/web"
	manage unix=http:$T/web tcp=$name:0 unix=tandem:$SOCK -- --http.socket="$T/unused"
	port=$(sed -n "s/^port $name //p" "$EVENTS")
	tell start
	see '^state active'
	health "$T/web"
	health "127.0.0.1:$port"
	[ ! -e "$T/unused" ] || fail "a socket of its own beside the one that was handed over for HTTP"
	tell stop
	see '^state inactive'
	manage_end
done

# ---- beyond loopback only who says so
manage wide=http-tcp:0 -- --tandem.socket="$T/own"
tell start
see '^exit 2'
grep -q 'not on a loopback address' "$LOG" || fail "the log does not say why"
manage_end
manage wide=http-tcp:0 -- --tandem.socket="$T/own" --http.allow_remote=yes
tell start
see '^state active'
[ -S "$T/own" ] || fail "no socket of its own where none was passed for tandem's clients"
tell stop
see '^state inactive'
manage_end
echo "sockets that were passed are served"
