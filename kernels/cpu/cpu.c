/*
 * cpu.c: the table of the CPU backend. See cpu.h for how its operations run and why their results do not depend on the batch.
 */
#include "kernels/cpu/cpu.h"

const struct td_ops td_cpu_ops = {
	.name = "cpu",
	.act = TD_F32,

	.open = td__device_open,
	.close = td__device_close,
	.sync = td__device_sync,
	.describe = td__device_describe,

	.arena_create = td__arena_create,
	.arena_import = td__arena_import,
	.arena_release = td__arena_release,
	.alloc = td__alloc,
	.free = td__free,
	.upload = td__upload,
	.download = td__download,
	.zero = td__zero,
	.checksum = td__checksum,

	.pack_bytes = td__pack_bytes,
	.pack = td__pack,
	.pack_rows = td__pack_rows,

	.batch_set = td__batch_set,
	.embed = td__embed,
	.rms_norm = td__rms_norm,
	.linear = td__linear,
	.swiglu = td__swiglu,
	.linear2 = td__linear2,
	.linear_swiglu = td__linear_swiglu,
	.copy = td__copy,

	.gdn = td__gdn,
	.attention = td__attention,
	.draft_context = td__draft_context,
	.draft_attention = td__draft_attention,

	.rows_last = td__rows_last,
	.rows_tail = td__rows_tail,
	.verify_ids = td__verify_ids,
	.mask_ids = td__mask_ids,
	.counts_reset = td__counts_reset,
	.counts_add = td__counts_add,
	.propose = td__propose,
	.accept = td__accept,
	.mask = td__mask,
	.rescore = td__rescore,

	.replay = td__replay,
	.replay_end = td__replay_end,
	.replay_wait = td__device_sync,
	.mark = td__mark,
	.elapsed_us = td__elapsed_us,
	.host_alloc = td__alloc,
	.host_free = td__free,

	.memory = td__memory,
	.assume = td__assume,
};
