# limit: 180
# tandemd under a service manager: readiness not before the workers', load in the status line, watchdog, failing starts, drain. The manager is
# tests/tools/notify_harness.c; the workers are fake.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/systemd_lib.sh"

# ---- ready when both workers are; a start's time limit goes on as long as it gets on; the environment is not the workers'
export FAKE_TARGET=step_us=1000,load_ms=1500 FAKE_DRAFTER=step_us=200,load_ms=1300
manage watchdog_ms=4000 start_ms=2000 --
tell start
see '^say STATUS=Loading: the configuration'
see '^say STATUS=Loading: target [0-9s]'
[ -S "$SOCK" ] || fail "loading, and no socket"
see '^say EXTEND_TIMEOUT_USEC='
see '^say STATUS=Loading: target ready, drafter'
[ "$(grep -c '^say READY=1' "$EVENTS")" = 0 ] || fail "READY before the drafter was"
see '^say READY=1'
see '^state active'
see '^say STATUS=Serving target-int4 on cpu: 0 of 4 slots'
never '^timeout'
for w in $(pgrep -f "$WORKER --control $T/run"); do
	! tr '\0' '\n' <"/proc/$w/environ" | grep -e '^NOTIFY_SOCKET' -e '^WATCHDOG' -e '^LISTEN_' || fail "a worker inherits the manager's variables"
done
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=5
until "tag=1 finish reason=2"
END
# Pings go on by themselves, several in a watchdog's time.
for i in 1 2 3; do see '^say WATCHDOG=1'; done

# ---- a worker's death is no reason for the manager to act; it is told
raw <<'END'
greet 0
status
until "status"
kill target 9
END
see '^say STATUS=Recovering: '
see '^say STATUS=Serving '
never '^watchdog'

# ---- a loop that hangs: no pings, the manager kills and starts again; so does a crash
grep '^start ' "$EVENTS" | tail -n 1 >"$T/first"
tell signal 19
see '^watchdog'
see '^died 6'
see '^state active'
grep '^start ' "$EVENTS" | tail -n 1 | cmp -s - "$T/first" && fail "it was not started again"
tell signal 9
see '^died 9'
see '^state active'
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=5
until "tag=1 finish reason=2"
END

# ---- drain: STOPPING at once, the answer is whole, code 0, nobody was killed
export FAKE_TARGET=step_us=1000
client <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=1500 draft_tokens=0
until "tag=1 delta position=3 "
note started
until "tag=1 finish reason=2 stop=- prompt=2 output=1500"
END
go_on 'note started'
tell stop
see '^say STOPPING=1'
see '^say STATUS=Draining'
answered
see '^exit 0'
see '^state inactive'
[ ! -e "$SOCK" ] || fail "the socket file was left behind"
manage_end

# ---- draining past the manager's own limit: each second asks for more time
export FAKE_TARGET=step_us=1000 FAKE_DRAFTER=step_us=200
manage stop_ms=600 -- --tandem.drain_s=20
tell start
see '^state active'
client <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=2000 draft_tokens=0
until "tag=1 delta position=3 "
note started
until "tag=1 finish reason=2 stop=- prompt=2 output=2000"
END
go_on 'note started'
tell stop
answered
see '^exit 0'
never '^timeout'

# ---- a start that cannot succeed fails, by the manager's limit, with the reason in the status line
export FAKE_TARGET=fail=bad_format,text=the\ weights\ are\ salad
manage_end
manage start_ms=1500 --
tell start
see '^say STATUS=The target worker cannot be had: the weights are salad'
see '^timeout'
see '^died 9'
see '^state failed'
never '^say READY'
manage_end

# ---- what can't be started by this configuration is not started again
manage -- --engine.slots=0
tell start
see '^exit 2'
see '^state failed'
sleep 0.3
[ "$(grep -c '^start ' "$EVENTS")" = 1 ] || fail "a wrong configuration is started again and again"
manage_end

echo "a service manager gets what it expects"
