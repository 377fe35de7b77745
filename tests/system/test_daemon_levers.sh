# limit: 240
# The fault levers of the real workers, each once: crash and hang at start, while loading, in a step, between verify and commit. The answer is the same.
. "$(dirname "$0")/daemon_lib.sh"
WORKER=$BIN/tandem-target
slow=1
[ "$B" = build-san ] && slow=5

answer() { # lever
	TANDEM_FAULT=$1 start --engine.drafter_worker="$BIN/tandem-drafter" --engine.slots=1 --engine.context=256 --engine.chunk=64 \
		--engine.watchdog_s=$((3 * slow)) --engine.load_timeout_s=$((3 * slow))
	raw <<-END
	greet 0
	timeout 60000
	gen tag=1 chat="user:how do I find files that are larger than a gigabyte, and what takes so much room in my home folder?" max_tokens=24 ignore_eos=1
	until "tag=1 finish reason=2"
	wait_status "state=ready"
	total tag=1
	END
}
answer ''
totals >"$T/good"
stop
for lever in target.start.crash target.start.hang target.load.crash target.load.hang target.step.crash:1 target.step.crash:6 target.step.hang:6 \
	target.commit.crash:3 target.commit.hang:3 target.exit drafter.start.crash drafter.load.crash drafter.load.hang drafter.step.crash:1 \
	drafter.step.crash:4 drafter.step.hang:4; do
	answer $lever
	totals | cmp -s - "$T/good" || fail "$lever: another answer: $(totals | diff - "$T/good")"
	status=$(grep ' status ' "$OUT" | tail -n 1)
	echo "$status" | grep -q "restarts_${lever%%.*}=[1-9]" || fail "$lever: nothing happened: $status"
	stop
done
echo "the levers are survived"
