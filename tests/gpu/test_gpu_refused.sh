# limit: 60
# Bad luck with a GPU: a clear sentence, soon, and nothing that hangs.
. "$(dirname "$0")/gpu_lib.sh"
says() { # text in the log within 20 s
	tries=0
	until grep -q "$1" "$LOG"; do
		tries=$((tries + 1))
		[ $tries -lt 400 ] || fail "the log does not say: $1"
		sleep 0.05
	done
	echo "said: $(grep "$1" "$LOG" | head -n 1 | cut -d ' ' -f 3- | cut -c 1-200)"
}
gpu() {
	start --engine.drafter_worker="$BIN/tandem-drafter" --engine.device=cuda --engine.mps=off "$@"
}
# a plan that is larger than the device
gpu --synthetic qwen3.5-9b:bf16 --model.tokenizer="$ROOT/models/tiny/tokenizer.json" --engine.slots=64 --engine.context=131072
says 'needs [0-9.]* GiB on the device .* are free: lower engine.slots'
stop
# no device to see; with auto that is the CPU
(CUDA_VISIBLE_DEVICES= && export CUDA_VISIBLE_DEVICES && gpu && says 'sees no device' && stop) || exit 1
(CUDA_VISIBLE_DEVICES= && export CUDA_VISIBLE_DEVICES && gpu --engine.device=auto && says 'worker is ready: cpu' && stop) || exit 1
# the CUDA module is not there
(TANDEM_CUDA_MODULE=$T/none.so && export TANDEM_CUDA_MODULE && gpu && says 'the CUDA module was not found' && stop) || exit 1
# MPS wanted, but its program is not there; a second daemon on the folder
tandemd_run --engine.device=cuda --engine.mps=on --engine.mps_control="$T/none" >"$OUT" 2>&1 && fail "it starts without MPS"
grep -q "cannot run $T/none" "$OUT" || fail "the sentence about MPS"
gpu
tandemd_run --engine.device=cuda >"$OUT" 2>&1 && fail "a second daemon in the same runtime folder"
echo "said: $(head -n 1 "$OUT")"
stop
