# limit: 90
# A client that does not read: its requests pause at a bound, go on when it reads, and are dropped when it does not; others do not notice.
. "$(dirname "$0")/daemon_lib.sh"
export FAKE_TARGET=step_us=200
start --limits.output_buffer=16K --limits.slow_reader_s=60 --engine.slots=2

# Log-probabilities make it much: 4000 tokens with 20 each are over 1 MB, the socket and the buffer hold less.
raw <<'END'
greet 1
greet 0 rcvbuf=4096
gen tag=1 ids=300,301,302 max_tokens=4000 ignore_eos=1 logprobs=20
expect "accepted"
use 1
sleep 400
# it holds its slot and makes nothing any more; the other slot works
status
expect "used=1"
gen tag=5 ids=400 max_tokens=500 ignore_eos=1
until "tag=5 finish reason=2"
wait_status "used=1"
use 0
until "tag=1 finish reason=2 stop=- prompt=3 output=4000"
total tag=1
END
totals | grep -q ' n=4000 gap=0 ' || fail "tokens were lost on the way"
grep -q 'reads slowly: its requests pause' "$LOG" || fail "it was not paused: the test has nothing to test"

# Commands in a flood without reading the answers are bounded as well. Some hundreds are answered in the end; thousands block the client itself, since
# nobody reads them, and it is dropped.
flood() {
	printf 'connect 0 rcvbuf=4096\nhello\n'
	i=0
	while [ $i -lt "$1" ]; do
		i=$((i + 1))
		echo "status tag=$i"
	done
	printf 'sleep 300\n%s\n' "$2"
}
flood 150 'until "tag=150 status"' >"$T/flood"
raw <"$T/flood"
stop
start --limits.output_buffer=16K --limits.slow_reader_s=2 --engine.slots=2
flood 3000 eof >"$T/flood"
raw <"$T/flood"
grep -q 'has not read for 2 s: its requests are dropped' "$LOG" || fail "the flood was not dropped"

# Never reading: told, dropped, its slot free; with the key the stream goes on where it was.
raw <<'END'
greet 1
greet 0 rcvbuf=4096
gen tag=1 ids=300,301,302 max_tokens=4000 ignore_eos=1 logprobs=20
expect "accepted"
use 1
wait_status "used=0"
use 0
until "tag=1 error code=slow_reader text=the client has not read its answers for 2 s"
until "tag=0 error code=slow_reader"
eof
use 1
wait_status "connections=1 "
resume tag=9 position=0
until "tag=9 finish reason=2 stop=- prompt=3 output=4000"
total tag=9
END
totals | grep -q ' n=4000 gap=0 ' || fail "tokens were lost after the drop"
stop

# The only slot is not kept for one that doesn't read: another request gets it, and the slow one goes on when it reads again.
start --limits.output_buffer=16K --limits.slow_reader_s=60 --engine.slots=1
raw <<'END'
greet 1
greet 0 rcvbuf=4096
gen tag=1 ids=300,301,302 max_tokens=4000 ignore_eos=1 logprobs=20
expect "accepted"
use 1
sleep 400
gen tag=5 ids=400 max_tokens=500 ignore_eos=1
until "tag=5 finish reason=2"
wait_status "used=0 queued=1"
use 0
until "tag=1 finish reason=2 stop=- prompt=3 output=4000"
total tag=1
END
totals | grep -q ' n=4000 gap=0 ' || fail "tokens of the slow one were lost"
grep -q 'its client does not read, and others wait' "$LOG" || fail "nothing was interrupted: the test has nothing to test"
stop
echo "slow readers are bounded"
