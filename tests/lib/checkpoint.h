/*
 * checkpoint.h: for tests: a small made-up target and drafter whose tensors can be bent one by one before they are written.
 *
 * Target: 3 layers (linear, full, linear), hidden 16, intermediate 24, vocabulary 10, 2 query heads, 1 kv head of 8, 1 key and 2 value heads of 8.
 * Drafter: 2 layers, same hidden, 2 query heads and 1 kv head of 64, taps 0 and 1.
 */
#ifndef TD_TEST_CHECKPOINT_H
#define TD_TEST_CHECKPOINT_H

#include <stddef.h>

struct ck_tensor {
	char name[128], dtype[12];
	long dim[3];
	size_t bytes;
	unsigned char *data;
};

struct ck {
	struct ck_tensor t[96];
	int n;
};

/* group 0: BF16, else packed */
void ck_target(struct ck *c, const char *prefix, int group);
void ck_drafter(struct ck *c, int group);
void ck_finish(struct ck *c);

struct ck_tensor *ck_find(struct ck *c, const char *name);
/* A tensor with made-up finite values; b and d = 0: fewer dimensions. */
struct ck_tensor *ck_add(struct ck *c, const char *dtype, const char *name, long a, long b, long d);
void ck_drop(struct ck *c, const char *name);
/* A module of `prefix` + `name`. */
void ck_linear(struct ck *c, const char *prefix, const char *name, int out, int in, int group);
/* The same module in the other format. */
void ck_reformat(struct ck *c, const char *module, int out, int in, int group);
/* `lead`: spaces behind the header, so that the data can lie at any alignment. */
void ck_write(const struct ck *c, const char *dir, const char *file, int lead);

#define CK_QUANT(group) \
	",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{\"weights\":{" \
	"\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\",\"group_size\":" group "}}}}"
#define CK_TARGET_CONFIG(more) \
	"{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":3,\"hidden_size\":16,\"intermediate_size\":24,\"vocab_size\":10,\"num_attention_heads\":2," \
	"\"num_key_value_heads\":1,\"head_dim\":8,\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_key_head_dim\":8," \
	"\"linear_value_head_dim\":8,\"max_position_embeddings\":64,\"rope_theta\":10000.0,\"layer_types\":[\"linear_attention\",\"full_attention\"," \
	"\"linear_attention\"]" more "}"
#define CK_DRAFTER_CONFIG(more) \
	"{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"hidden_size\":16,\"intermediate_size\":24,\"vocab_size\":10,\"num_attention_heads\":2," \
	"\"num_key_value_heads\":1,\"head_dim\":64,\"max_position_embeddings\":64,\"rope_theta\":10000.0,\"block_size\":4,\"sliding_window\":5," \
	"\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"dflash_config\":{\"mask_token_id\":9,\"target_layer_ids\":[0,1]}" more "}"

#endif
