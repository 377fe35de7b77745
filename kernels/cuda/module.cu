/*
 * module.cu: the table that the module exports. td_ops_find opens the module and asks for this one symbol.
 */
#include "kernels/cuda/internal.cuh"

extern "C" {
extern const struct td_ops td_cuda_ops __attribute__((visibility("default")));
const struct td_ops td_cuda_ops = {
	"cuda",
	TD_BF16,
	td__cuda_open,
	td__cuda_close,
	td__cuda_sync,
	td__cuda_describe,
	td__cuda_arena_create,
	td__cuda_arena_import,
	td__cuda_arena_release,
	td__cuda_alloc,
	td__cuda_free,
	td__cuda_upload,
	td__cuda_download,
	td__cuda_zero,
	td__cuda_checksum,
	td__cuda_pack_bytes,
	td__cuda_pack,
	td__cuda_batch_set,
	td__cuda_embed,
	td__cuda_rms_norm,
	td__cuda_linear,
	td__cuda_swiglu,
	td__cuda_copy,
	td__cuda_gdn,
	td__cuda_attention,
	td__cuda_draft_context,
	td__cuda_draft_attention,
	td__cuda_rows_last,
	td__cuda_rows_tail,
	td__cuda_verify_ids,
	td__cuda_mask_ids,
	td__cuda_counts_reset,
	td__cuda_counts_add,
	td__cuda_propose,
	td__cuda_accept,
	td__cuda_flag_set,
	td__cuda_flag_wait,
	td__cuda_memory,
	td__cuda_exchange_create,
	td__cuda_exchange_open,
	td__cuda_exchange_close,
	td__cuda_fault,
	td__cuda_lend,
	td__cuda_allocations,
};
}
