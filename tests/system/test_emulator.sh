# limit: 300
# The CUDA module's own source on an emulated GPU (tests/emulator): every operation against the CPU's, then both workers on it through the daemon: memory by
# handles and descriptors, speculation on and off, a target that is killed, one whose kernel touches memory that is not there.
. "$(dirname "$0")/daemon_lib.sh"
EMULATOR=$ROOT/$B/emulator
if [ ! -e "$EMULATOR/tandem-cuda.so" ]; then
	echo "skipped: the emulator needs CUDA's headers and an x86-64 machine"
	exit 0
fi
export TANDEM_CUDA_MODULE="$EMULATOR/tandem-cuda.so" LD_LIBRARY_PATH="$EMULATOR" TANDEM_SOCKET="$SOCK"
unset XDG_RUNTIME_DIR
TANDEM=$BIN/tandem

"$TOOLS/ops_check" --small >"$OUT" 2>&1 || fail "an operation differs from the CPU's: $(grep -v ' ok$' "$OUT")"
tail -n 1 "$OUT"
[ "$(grep -c ' ok$' "$OUT")" -gt 150 ] || fail "too few lines"

WORKER=$BIN/tandem-target
serve() { # options
	start --engine.drafter_worker="$BIN/tandem-drafter" --engine.device=cuda --engine.mps=off --engine.slots=2 --engine.context=256 --engine.watchdog_s=120 "$@"
	"$TANDEM" status --wait 120 >"$OUT" 2>&1 || fail "not ready: $(cat "$OUT")"
}
ask() { # options
	timeout 200 "$TANDEM" run --no-think -g -n 5 "$@" "How do I list files?" 2>"$T/err" || fail "$(cat "$T/err")"
}
state() {
	"$TANDEM" status --json
}

serve
state | grep -q "emulated GPU" || fail "the workers are not on the emulated GPU"
ask >"$T/good"
[ -s "$T/good" ] || fail "no answer"
ask --draft-tokens 0 >"$T/plain"
cmp -s "$T/good" "$T/plain" || fail "speculation changes the answer: $(cat "$T/good") / $(cat "$T/plain")"
ask --draft-tokens 3 >"$T/plain"
cmp -s "$T/good" "$T/plain" || fail "three drafts change the answer"

# Killed: the successors take the weights over from the kept arenas, on the device as on the host.
kill -9 "$(state | tr -d ' \n' | sed 's/.*"role":"target"//' | grep -o '"pid":[0-9]*' | head -n 1 | cut -d : -f 2)"
ask >"$T/again"
cmp -s "$T/good" "$T/again" || fail "another answer after the target was killed"
[ "$(state | grep -c '"imported": true')" -ge 1 ] || fail "weights were read again: $(state)"
stop

# An access to memory that is not there is the end of that worker, not of the answer.
TANDEM_FAULT=target.gpu.fault:2
export TANDEM_FAULT
serve
unset TANDEM_FAULT
ask >"$T/again"
cmp -s "$T/good" "$T/again" || fail "another answer after an illegal access"
grep -q "illegal memory access" "$LOG" || fail "nobody saw the illegal access"
stop
