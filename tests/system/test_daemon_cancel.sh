# limit: 240
# With the real workers: a request is cancelled while it waits, in prefill, while its draft is made, while it is verified (the worker is stopped there until
# the cancel was answered); its neighbour's answer stays the same and no worker is replaced. And a request that is interrupted in favour of another tenant
# goes on to the very answer that it would have given.
. "$(dirname "$0")/daemon_lib.sh"
[ -x "$BIN/tandem-target" ] && [ -x "$BIN/tandem-drafter" ] || fail "the workers are not built"
WORKER=$BIN/tandem-target
ME=$(id -u)
printf '[tenant a]\nuids = %s\n[tenant b]\nuids = %s\n' "$ME" "$ME" >"$T/ini"
pids='status tag=9
until "tag=9 status"'
real() { start --config "$T/ini" --engine.drafter_worker="$BIN/tandem-drafter" --engine.context=1024 --engine.chunk=64 "$@"; }
long=$(awk 'BEGIN { for (i = 0; i < 60; i++) printf "list the files of folder %d, newest first. ", i }')
neighbour='gen tag=1 chat="user:how do I find large files?" max_tokens=24 ignore_eos=1 temperature=0.7 seed=5'

stage() { # name, request to cancel, how far it must have come, what holds it there, what lets it go, what it must have said
	raw <<-END
	greet 0
	timeout 60000
	wait_status "state=ready"
	$neighbour
	$2
	until "$3"
	$4
	cancel target=2
	until "tag=2 finish reason=3 $6"
	$5
	until "tag=1 finish reason=2"
	wait_status "used=0 queued=0"
	total tag=1
	END
	totals | cmp -s - "$T/good" || fail "cancelled in $1: the neighbour's answer changed: $(totals | diff - "$T/good")"
	grep ' status ' "$OUT" | tail -n 1 | grep -q 'restarts_target=0 .*restarts_drafter=0 ' || fail "cancelled in $1: a worker was replaced"
	echo "cancelled in $1"
}
real --engine.slots=2
raw <<END
greet 0
timeout 60000
wait_status "state=ready"
$neighbour
until "tag=1 finish reason=2"
total tag=1
END
totals >"$T/good"
answer='gen tag=2 chat="user:and the small ones?" max_tokens=900 ignore_eos=1'
stage queue "gen tag=3 text=\"x\" max_tokens=60 ignore_eos=1
$answer" 'tag=2 accepted' '' 'cancel target=3' 'stop=-'
stage prefill "gen tag=2 text=\"$long\" max_tokens=50 ignore_eos=1" 'tag=2 accepted' "$pids
kill target 19" "$pids
kill target 18" 'stop=-'
grep -q 'tag=2 finish reason=3 .* output=0 ' "$OUT" || fail "the prefill was over before the worker was stopped"
stage draft "$answer" 'tag=2 delta' "$pids
kill drafter 19" "$pids
kill drafter 18" 'stop=-'
stage verify "$answer" 'tag=2 delta' "$pids
kill target 19" "$pids
kill target 18" 'stop=-'
stop

# ---- interrupted: two long answers and one slot; greedy, and sampled with log-probabilities. A stay lasts at least ten times what filling its cache cost,
# and as measured times a slow first step can make that longer than an answer: so every step is charged the same (target.even). 21 tokens of prompt are one
# step and the first draft's another: the first turn ends about step 20, of some 70 that an answer takes.
one='gen tag=1 chat="user:how do I find large files?" max_tokens=110 ignore_eos=1 stream=0'
two='gen tag=2 chat="user:count the lines of all C files" max_tokens=110 ignore_eos=1 temperature=0.8 top_p=0.9 seed=7 logprobs=2 stream=0'
together() { # options
	export TANDEM_FAULT=target.even
	real --engine.slots=1 "$@"
	unset TANDEM_FAULT
	raw <<-END
	greet 0 tenant=a
	greet 1 tenant=b
	timeout 120000
	wait_status "state=ready"
	$pids
	kill target 19
	use 0
	$one
	until "tag=1 accepted"
	use 1
	$two
	until "tag=2 accepted"
	$pids
	kill target 18
	until "tag=2 finish reason=2"
	total tag=2
	use 0
	until "tag=1 finish reason=2"
	total tag=1
	END
	totals >"$T/totals"
}
together --limits.quantum_ms=0
cp "$T/totals" "$T/good"
! grep -q 'is interrupted after' "$LOG" || fail "interrupted without a quantum"
stop
for cache in on off; do
	together --limits.quantum_ms=10 --engine.prefix_cache=$cache
	! grep 'is interrupted after' "$LOG" | grep -v 'after [0-9]*\.0 ms' || fail "the steps were not all charged the same"
	for r in 1 2; do
		grep -q "request $r is interrupted after" "$LOG" || fail "request $r was not interrupted: $(grep 'is interrupted after' "$LOG")"
	done
	cmp -s "$T/totals" "$T/good" || fail "an interrupted answer is another one: $(diff "$T/totals" "$T/good")"
	echo "the same answers after $(grep -c 'is interrupted after' "$LOG") interruptions, prefix cache $cache"
	stop
done
