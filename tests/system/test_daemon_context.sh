# limit: 120
# Answers that fill the context to its last token, with the real workers: no worker is lost on the way, speculation or not gives the same, and a pool of
# pages that is smaller than all slots together makes requests wait, not fail.
. "$(dirname "$0")/daemon_lib.sh"
WORKER=$BIN/tandem-target
start --engine.drafter_worker="$BIN/tandem-drafter" --engine.slots=4 --engine.context=128 --engine.chunk=64 --engine.kv_tokens=256
raw <<'END'
timeout 60000
greet 1
wait_status "state=ready"
greet 0
gen tag=1 text="how do I list large files?" ignore_eos=1
gen tag=2 text="how do I list large files?" ignore_eos=1 draft_tokens=0
gen tag=3 ids=300*127
gen tag=4 ids=300*120 ignore_eos=1
gen tag=5 text="how do I list large files?" max_tokens=3 ignore_eos=1
use 1
wait_status "used=2 queued=3"
wait_status "used=0 queued=0"
status
expect "restarts_target=0 "
status
expect "restarts_drafter=0 "
use 0
status tag=50
until "tag=50 status"
total tag=1
total tag=2
total tag=3
total tag=4
END
[ "$(totals | sed -n 1p)" = "$(totals | sed -n 2p)" ] || fail "speculation changes the answer: $(totals)"
totals | sed -n 1p | grep -q ' n=12[0-9] gap=0' || fail "the answer does not fill the context: $(totals)"
totals | sed -n 3p | grep -q ' n=1 ' || fail "a prompt of all but one token: $(totals)"
totals | sed -n 4p | grep -q ' n=8 ' || fail "eight tokens were left: $(totals)"
stop
echo "contexts are filled to the end"
