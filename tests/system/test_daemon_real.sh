# limit: 240
# With the real workers and the shipped model: killed in every phase, the answers stay the same to the token, greedy and sampled, and the successor
# reads no weights.
. "$(dirname "$0")/daemon_lib.sh"
[ -x "$BIN/tandem-target" ] && [ -x "$BIN/tandem-drafter" ] || fail "the workers are not built"
WORKER=$BIN/tandem-target
start --engine.drafter_worker="$BIN/tandem-drafter" --engine.slots=2 --engine.context=1024 --engine.chunk=64

long=$(awk 'BEGIN { for (i = 0; i < 40; i++) printf "list the files of folder %d, newest first. ", i }')
three() { # script lines in the middle
	raw <<-END
	greet 1
	greet 0
	timeout 60000
	gen tag=1 chat="user:how do I find large files?" max_tokens=32 ignore_eos=1 logprobs=2
	gen tag=2 text="$long" max_tokens=12 ignore_eos=1
	gen tag=3 chat="user:count the lines of all C files" max_tokens=32 ignore_eos=1 temperature=0.8 top_p=0.9 seed=7 presence_penalty=0.5
	$1
	use 0
	until "tag=3 finish reason=2"
	use 1
	wait_status "used=0 queued=0"
	use 0
	total tag=1
	total tag=2
	total tag=3
	END
}
three 'use 1'
totals >"$T/good"
[ "$(grep -c ' gap=0 ' "$T/good")" = 3 ] || fail "no reference"
three 'use 1'
totals | cmp -s - "$T/good" || fail "not even the same twice: $(totals | diff - "$T/good")"

for worker in target drafter; do
	for moment in 30 300; do
		three "use 1
		wait_status \"state=ready\"
		sleep $moment
		wait_status \"state=ready\"
		kill $worker 9"
		totals | cmp -s - "$T/good" || fail "$worker killed after $moment ms: another answer: $(totals | diff - "$T/good")"
		restarts=$((${restarts:-0} + 1))
	done
done
raw <<'END'
greet 0
wait_status "state=ready"
END
tail -n 1 "$OUT" | grep -q 'restarts_target=2 .*imported_target=1 .*restarts_drafter=2 .*imported_drafter=1' || fail "restarts: $(tail -n 1 "$OUT")"
stop
echo "the same answers after $restarts kills of real workers"
