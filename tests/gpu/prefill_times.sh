#!/bin/sh
# How long the synthetic 4B pair reads prompts at several values of engine.chunk: `sh tests/gpu/prefill_times.sh [chunk...]`; not part of the suite.
. "$(dirname "$0")/gpu_lib.sh"
READ='256 512 1024 2048 4096 8192'
[ $# -gt 0 ] || set -- 1024 2048 4096 8192
for chunk; do
	serve "$(ways | tail -n 1)" --synthetic qwen3.5-4b --model.tokenizer="$ROOT/models/tiny/tokenizer.json" --engine.slots=1 --engine.context=8448 \
		--engine.chunk="$chunk" --engine.prefix_cache=off
	for n in $READ; do
		for try in 1 2 3; do
			p0=$(figure_of target prefill_tokens) q0=$(figure_of target prefill_us)
			awk -v n="$n" 'BEGIN { for (i = 0; i < n; i++) printf " a" }' | "$TANDEM" run --json --raw --ignore-eos -n 2 - >"$T/answer" 2>"$T/err" ||
				fail "$n tokens: $(cat "$T/err")"
			echo "$(($(figure_of target prefill_us) - q0)) $(($(figure_of target prefill_tokens) - p0))"
		done | sort -n | sed -n 2p | awk -v c="$chunk" '{ printf "chunk %5d: %5d tokens in %7.2f ms, %6.0f tokens/s\n", c, $2, $1 / 1000, $2 / $1 * 1e6 }'
	done
	stop
done
