# limit: 400
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
for op in gdn linear; do
	EMULATOR_CLUSTERS=0 "$TOOLS/ops_check" --small --only $op >"$OUT" 2>&1 || fail "on a share of a GPU too narrow for clusters: $(grep -v ' ok$' "$OUT")"
done
for op in gdn attention linear; do
	EMULATOR_SHARED=101376 "$TOOLS/ops_check" --small --only $op >"$OUT" 2>&1 || fail "on a GPU with little shared memory: $(grep -v ' ok$' "$OUT")"
done
EMULATOR_SMS=1 EMULATOR_SHARED=101376 "$TOOLS/ops_check" --tiny --only linear >"$OUT" 2>&1 || fail "where columns take more blocks than there are multiprocessors: $(grep -v ' ok$' "$OUT")"
EMULATOR_MINOR=1 "$TOOLS/ops_check" --small --only gdn >"$OUT" 2>&1 || fail "on a GPU without the bulk copy engine: $(grep -v ' ok$' "$OUT")"
for op in attention draft; do
	EMULATOR_SMS=40 "$TOOLS/ops_check" --small --only $op >"$OUT" 2>&1 || fail "where a sequence alone has a multiprocessor for each span: $(grep -v ' ok$' "$OUT")"
done
EMULATOR_BLAS=fickle "$TOOLS/ops_check" --small --only linear >"$OUT" 2>&1 || fail "with a cuBLAS whose bits depend on a call's rows: $(grep -v ' ok$' "$OUT")"

WORKER=$BIN/tandem-target
serve() { # options
	start --engine.drafter_worker="$BIN/tandem-drafter" --engine.device=cuda --engine.mps=off --engine.slots=2 --engine.context=256 --engine.chunk=64 --engine.watchdog_s=120 "$@"
	"$TANDEM" status --wait 120 >"$OUT" 2>&1 || fail "not ready: $(cat "$OUT")"
}
# Longer than the 64 tokens of a prefill step, so that a second one finds something in the prefix cache.
PROMPT="List the files of a folder and of the folders below it with their sizes in kilobytes, then sort them by size, largest first, and show only ten lines of it. Explain each option of ls, sort and head, one line each."
ask() { # options
	timeout 250 "$TANDEM" run --no-think -g -n 4 "$@" "$PROMPT" 2>"$T/err" || fail "$(cat "$T/err")"
}
state() {
	"$TANDEM" status --json
}

serve
state | grep -q "emulated GPU" || fail "the workers are not on the emulated GPU"
ask >"$T/good"
[ -s "$T/good" ] || fail "no answer"
ask --draft-tokens 0 --json >"$T/plain"
grep -q "\"text\":\"$(cat "$T/good")\"" "$T/plain" || fail "speculation or the prefix cache changes the answer: $(cat "$T/good") / $(cat "$T/plain")"
grep -q '"cached_tokens":64' "$T/plain" || fail "the prefix cache was not used: $(cat "$T/plain")"
ask --json-schema '{"enum": [true, false]}' >"$T/json"
grep -qx 'true\|false' "$T/json" || fail "a constraint does not hold: $(cat "$T/json")"

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
