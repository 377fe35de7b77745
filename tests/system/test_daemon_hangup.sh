# limit: 60
# A client that hangs up frees its slot, long before its answer would end; 200 connections that say nothing do not disturb a running answer; the cap on connections.
. "$(dirname "$0")/daemon_lib.sh"
export FAKE_TARGET=step_us=40000
start --engine.slots=2 --tandem.handshake_s=2 --tandem.max_connections=230

# Two long answers fill the slots, a third request waits. Hanging up in the slot and in the queue; the next in line starts at once.
raw <<'END'
greet 9
greet 0
gen tag=1 ids=300,301 max_tokens=4000 ignore_eos=1 draft_tokens=0
until "delta"
greet 1
gen tag=1 ids=300,301 max_tokens=4000 ignore_eos=1 draft_tokens=0
until "delta"
greet 2
gen tag=1 ids=300,301 max_tokens=4000 ignore_eos=1 draft_tokens=0
expect "accepted"
use 9
wait_status "used=2 queued=1"
use 0
close
use 2
until "delta"
use 9
status
expect "used=2 queued=0"
use 1
close
use 2
close
use 9
# the first look may come before the hang-up is seen; the answers would take 160 s
wait_status "used=0 queued=0"
END
# In the prefill: 3000 tokens in chunks of 256 take 12 steps, and the answer would take 40 s.
raw <<'END'
greet 9
greet 0
gen tag=1 ids=300*3000 max_tokens=1000 ignore_eos=1 draft_tokens=0
expect "accepted"
use 9
wait_status "used=1"
use 0
close
use 9
wait_status "used=0 queued=0"
END

# The crowd is there before, during and after an answer; the answer takes as long as it takes alone.
run() {
	raw <<-END
	greet 0
	$1
	gen tag=1 ids=300,301,302 max_tokens=40 ignore_eos=1 draft_tokens=0
	until "tag=1 finish reason=2"
	total tag=1
	END
}
start_ms=$(date +%s%3N)
run "note alone"
alone=$(($(date +%s%3N) - start_ms))
totals >"$T/alone"
start_ms=$(date +%s%3N)
run "crowd 200"
crowded=$(($(date +%s%3N) - start_ms))
totals | cmp -s - "$T/alone" || fail "another answer in a crowd: $(totals)"
[ $crowded -lt $((alone + alone / 2 + 200)) ] || fail "alone $alone ms, in a crowd $crowded ms"

# The crowd is sent away after the handshake's time; more than the cap is told so at once.
raw <<'END'
greet 0
crowd 228
wait_status "connections=229"
connect 1
connect 2
expect "error code=limit text=tandemd has as many connections as tandem.max_connections allows"
eof
use 0
wait_status "connections=1 "
gen tag=1 ids=300 max_tokens=2
until "finish"
END
stop
echo "alone $alone ms, beside 200 silent connections $crowded ms"
