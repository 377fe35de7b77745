# limit: 150
# alone
# Sharing on the real daemon: two tenants that always want more get their shares by weight, a victim's latency stays the same beside 1, 8 and 64 floods, and
# long answers give way. FAIR_S: seconds that the shares are measured for (the figure for 60 is in docs/tenants.md).
. "$(dirname "$0")/daemon_lib.sh"
: "${FAIR_S:=5}"
ME=$(id -u)
export FAKE_TARGET=step_us=1000 FAKE_DRAFTER=step_us=100
load() { "$TOOLS/fairload" "$SOCK" "$@" >"$OUT" 2>"$T/err" || fail "$(cat "$T/err")"; }
field() { sed -n "s/^$1 .* *$2=\([0-9.]*\).*/\1/p" "$OUT"; }
part() { sed -n "s/^$1 gpu_us=\([0-9]*\) .*/\1/p" "$OUT"; }
sections() { # weight of a
	printf '[tenant a]\nuids = %s\nweight = %s\n[tenant b]\nuids = %s\n[tenant victim]\nuids = %s\n' "$ME" "$1" "$ME" "$ME"
	for i in $(seq 64); do printf '[tenant flood%d]\nuids = %s\n' "$i" "$ME"; done
}

# ---- shares: long prompts and short answers against the other way round
for weight in 1 3; do
	sections $weight >"$T/ini"
	start --config "$T/ini" --tandem.log_level=info
	load 1 "$FAIR_S" a,clients=12,prompt=600,out=8 b,clients=12,prompt=30,out=60
	awk -v w=$weight -v a="$(part a)" -v b="$(part b)" -v s="$FAIR_S" 'BEGIN {
		want = w / (w + 1); got = a / (a + b)
		printf "%d:1 over %d s: share of the first %.4f (%.4f)\n", w, s, got, want
		exit !(a > 0 && b > 0 && got > want * 0.95 && got < want * 1.05 && 1 - got > (1 - want) * 0.95 && 1 - got < (1 - want) * 1.05) }' ||
		fail "the shares are not those of the weights: a $(part a), b $(part b)"
	stop
done

# ---- a victim that wants less than its part, beside floods, each a tenant of its own
sections 1 >"$T/ini"
start --config "$T/ini" --tandem.log_level=info --limits.queue=1000
base=
for n in 1 8 64; do
	floods=
	for i in $(seq $n); do floods="$floods flood$i,clients=6,prompt=100,out=40"; done
	# shellcheck disable=SC2086
	load 0.5 6 victim,clients=1,prompt=20,out=6,think_ms=250 $floods
	echo "a victim beside $n floods: $(grep '^victim' "$OUT")"
	half=$(field victim first_p50) first=$(field victim first_p99) gap=$(field victim gap_p99)
	[ "$(field victim requests)" -ge 8 ] || fail "the victim got only $(field victim requests) answers"
	[ -n "$base" ] || base="$half $first $gap"
	# In order of arrival it would wait for all that the floods have waiting, more than a second. A machine that does other things as well is given room.
	awk -v base="$base" -v h="$half" -v f="$first" -v g="$gap" 'BEGIN { split(base, b); exit !(h <= 3 * b[1] + 20 && f <= 4 * b[2] + 100 && g <= 4 * b[3] + 50) }' ||
		fail "first token $half and $first ms, gap $gap ms beside $n floods; $base beside one"
done
stop

# ---- long answers of one tenant give way to another's; nobody's client notices anything but a pause
start --config "$T/ini" --limits.quantum_ms=60 --engine.slots=1
ids=$(seq -s, 300 339)
want=$(awk 'BEGIN { for (i = 0; i < 1000; i++) printf "%d,", 300 + i % 40 }')
raw <<END
greet 0 tenant=a
greet 1 tenant=b
use 0
wait_status "state=ready"
gen tag=1 ids=$ids max_tokens=1000 ignore_eos=1 draft_tokens=2
until "tag=1 delta"
use 1
gen tag=2 ids=$ids max_tokens=1000 ignore_eos=1 draft_tokens=2
until "tag=2 finish reason=2"
total tag=2
use 0
until "tag=1 finish reason=2"
total tag=1
END
n=$(grep -c 'is interrupted after' "$LOG")
echo "two long answers in one slot: $n interruptions"
[ "$n" -ge 3 ] || fail "only $n interruptions"
[ "$(grep -c "^total .*$want" "$OUT")" = 2 ] || fail "an answer that was interrupted is not what it should be: $(totals | cut -c 1-200)"
! grep -q 'restarts=[1-9]' "$OUT" || fail "an interruption counts as a restart"
# ... also with cancels and a worker's death in between
raw <<END
greet 0 tenant=a
greet 1 tenant=b
use 0
status
until "target=ready"
gen tag=1 ids=$ids max_tokens=1000 ignore_eos=1 draft_tokens=2
gen tag=3 ids=$ids max_tokens=1000 ignore_eos=1 draft_tokens=2
use 1
gen tag=2 ids=$ids max_tokens=1000 ignore_eos=1 draft_tokens=2
gen tag=4 ids=$ids max_tokens=1000 ignore_eos=1 draft_tokens=2
until "tag=2 delta"
status
until "pid_target="
kill target 9
until "tag=2 delta"
cancel target=4
until "tag=4 finish reason=3"
until "tag=2 finish reason=2"
total tag=2
use 0
until "tag=3 finish reason=2"
total tag=1
total tag=3
wait_status "queued=0"
END
[ "$(grep -c "^total .*$want" "$OUT")" = 3 ] || fail "an answer got lost between an interruption and a death: $(totals | cut -c 1-200)"
stop
echo "the device is shared"
