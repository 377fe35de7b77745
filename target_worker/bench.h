/*
 * bench.h: `tandem-target bench-ops`: a mode of the worker that measures operations instead of serving, for `tandem bench ops` (the client links no
 * kernel). One JSON object on stdout; a failure is a line on stderr and exit code 1.
 */
#ifndef TD_TARGET_BENCH_H
#define TD_TARGET_BENCH_H

/* argv: "bench-ops" DEVICE MODEL DRAFTER CONTEXT MILLISECONDS THREADS ACTIVATIONS. MODEL and DRAFTER are folders or synthetic names, of which only the configuration is
 * read; DRAFTER may be "none", or "own": a synthetic model's. ACTIVATIONS: as model.activations. */
int td_target_bench(int argc, char **argv);

#endif
