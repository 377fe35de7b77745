# limit: 60
# SIGTERM: what runs ends well, what waits is refused, nothing new is taken, nothing is left; past its time what runs is cancelled; twice is at once.
. "$(dirname "$0")/daemon_lib.sh"
export FAKE_TARGET=step_us=5000

start --engine.slots=1
client <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=100 draft_tokens=0
gen tag=2 ids=300,301 max_tokens=100
until "tag=1 delta position=3 "
note started
until "tag=2 error code=draining text=tandemd is ending"
status
until "state=draining"
gen tag=3 ids=300 max_tokens=2
until "tag=3 error code=draining"
until "tag=1 finish reason=2 stop=- prompt=2 output=100"
eof
END
go_on 'note started'
stop
answered

# ---- an answer that would take 20 s has 1 s
start --tandem.drain_s=1
client <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=4000 draft_tokens=0 ignore_eos=1
until "tag=1 delta position=3 "
note started
until "tag=1 finish reason=3"
eof
END
go_on 'note started'
before=$(date +%s%3N)
stop
took=$(($(date +%s%3N) - before))
answered
[ $took -ge 900 ] && [ $took -lt 15000 ] || fail "it took $took ms instead of a little over 1000"

# ---- a second signal ends at once; also with workers that hear nothing
start
client <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=4000 draft_tokens=0 ignore_eos=1
until "tag=1 delta position=3 "
status
until "status"
kill target 19
note started
until "tag=1 finish reason=3"
eof
END
go_on 'note started'
before=$(date +%s%3N)
kill -TERM "$PID"
sleep 0.2
stop INT
took=$(($(date +%s%3N) - before))
answered
[ $took -lt 15000 ] || fail "a second signal took $took ms"
echo "every end is an orderly one"
