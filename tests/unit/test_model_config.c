/*
 * test_model_config.c: config.json of targets and drafters: published forms are read right, nonsense and unknown mathematics are refused by name.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/model.h"
#include "tests/lib/model_files.h"
#include "tests/lib/unit.h"

static struct td_error err;

static int setup(void **state)
{
	memset(&err, 0, sizeof(err));
	return scratch_setup(state);
}

/* The 4B model as published: nested, ids only the end of text, rope in rope_parameters. */
static const char target4b[] =
	"{\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":true,\"image_token_id\":248056,"
	"\"text_config\":{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":32,\"hidden_size\":2560,\"intermediate_size\":9216,\"hidden_act\":\"silu\","
	"\"num_attention_heads\":16,\"num_key_value_heads\":4,\"head_dim\":256,\"attn_output_gate\":true,\"full_attention_interval\":4,"
	"\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"linear_conv_kernel_dim\":4,"
	"\"vocab_size\":248320,\"rms_norm_eps\":1e-06,\"max_position_embeddings\":262144,\"eos_token_id\":248044,\"attention_bias\":false,"
	"\"rope_parameters\":{\"mrope_interleaved\":true,\"mrope_section\":[11,11,10],\"rope_type\":\"default\",\"rope_theta\":10000000,"
	"\"partial_rotary_factor\":0.25}},\"vision_config\":{\"depth\":24}}";

static const char drafter4b[] =
	"{\"architectures\":[\"DFlashDraftModel\"],\"model_type\":\"qwen3\",\"attention_bias\":false,\"block_size\":16,\"hidden_act\":\"silu\","
	"\"dflash_config\":{\"mask_token_id\":248077,\"target_layer_ids\":[1,5,9,13,17,21,25,29]},\"head_dim\":128,\"hidden_size\":2560,"
	"\"intermediate_size\":9216,\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
	"\"sliding_attention\",\"full_attention\"],\"max_position_embeddings\":262144,\"num_attention_heads\":32,\"num_hidden_layers\":6,"
	"\"num_key_value_heads\":8,\"num_target_layers\":32,\"rms_norm_eps\":1e-06,\"rope_theta\":10000000,\"rope_scaling\":null,"
	"\"sliding_window\":4096,\"use_sliding_window\":true,\"vocab_size\":248320}";

/* `base` with dotted `path` set to the JSON `value` (NULL deletes), written as config.json. */
static void config_write(const char *base, const char *path, const char *value)
{
	json_t *root = json_loads(base, 0, NULL), *at = root, *v = NULL;
	char step[64], *text;
	const char *dot;

	assert_non_null(root);
	for (; path && (dot = strchr(path, '.')); path = dot + 1) {
		snprintf(step, sizeof(step), "%.*s", (int)(dot - path), path);
		if (!json_object_get(at, step))
			json_object_set_new(at, step, json_object());
		at = json_object_get(at, step);
	}
	if (path && value) {
		v = json_loads(value, JSON_DECODE_ANY, NULL);
		assert_non_null(v);
		json_object_set_new(at, path, v);
	} else if (path) {
		json_object_del(at, path);
	}
	text = json_dumps(root, 0);
	file_text(scratch, "config.json", text);
	free(text);
	json_decref(root);
}

static void expect(const char *what, const char *value, int rc, int code, const char *text)
{
	if (rc == code && (code == 0 || (err.code == code && strstr(err.text, text) && strstr(err.text, "config.json"))))
		return;
	fail_msg("%s = %s: got %s \"%s\", expected %s with \"%s\"", what ? what : "-", value ? value : "-", td_error_name(rc), rc ? err.text : "",
		 td_error_name(code), text);
}

static int target_try(struct td_target_config *c)
{
	memset(&err, 0, sizeof(err));
	return td_target_config_load(scratch, c, &err);
}

static int drafter_try(struct td_drafter_config *c)
{
	memset(&err, 0, sizeof(err));
	return td_drafter_config_load(scratch, c, &err);
}

static void test_target_published(void **state)
{
	struct td_target_config c;

	(void)state;
	config_write(target4b, NULL, NULL);
	assert_int_equal(target_try(&c), 0);
	assert_string_equal(c.model_type, "qwen3_5");
	assert_int_equal(c.layers, 32);
	assert_int_equal(c.hidden, 2560);
	assert_int_equal(c.intermediate, 9216);
	assert_int_equal(c.vocab, 248320);
	assert_int_equal(c.heads, 16);
	assert_int_equal(c.kv_heads, 4);
	assert_int_equal(c.head_dim, 256);
	assert_int_equal(c.rotary_dim, 64);
	assert_int_equal(c.k_heads, 16);
	assert_int_equal(c.v_heads, 32);
	assert_int_equal(c.k_dim, 128);
	assert_int_equal(c.v_dim, 128);
	assert_int_equal(c.conv_kernel, 4);
	assert_int_equal(c.tied, 1);
	assert_int_equal(c.max_position, 262144);
	assert_int_equal(c.attn_output_gate, 1);
	assert_true(c.rope_theta == 1e7f && c.eps == 1e-6f);
	for (int i = 0; i < 32; i++)
		assert_int_equal(c.full_attention[i], i % 4 == 3);
	assert_int_equal(c.n_eos, 1);
	assert_int_equal(c.eos[0], 248044);
	assert_int_equal(c.quant.bits, 0);
	assert_int_equal(c.quant.n_sizes, 0);
}

static void test_target_tied_and_eos(void **state)
{
	struct td_target_config c;

	(void)state;
	config_write(target4b, "tie_word_embeddings", "false");
	assert_int_equal(target_try(&c), 0);
	assert_int_equal(c.tied, 0);
	config_write(target4b, "text_config.tie_word_embeddings", "false");
	assert_int_equal(target_try(&c), 0);
	assert_int_equal(c.tied, 0);

	/* lists, both levels and the generation defaults come together, each id once */
	config_write(target4b, "text_config.eos_token_id", "[7, 9, 7]");
	file_text(scratch, "generation_config.json", "{\"eos_token_id\":[248046,9],\"temperature\":1.0}");
	assert_int_equal(target_try(&c), 0);
	assert_int_equal(c.n_eos, 3);
	assert_int_equal(c.eos[0], 7);
	assert_int_equal(c.eos[1], 9);
	assert_int_equal(c.eos[2], 248046);
	file_text(scratch, "generation_config.json", "{\"eos_token_id\":null}");
	assert_int_equal(target_try(&c), 0);
	assert_int_equal(c.n_eos, 2);
	file_text(scratch, "generation_config.json", "{\"eos_token_id\":248320}");
	assert_int_equal(target_try(&c), TD_E_FORMAT);
	assert_non_null(strstr(err.text, "generation_config.json: eos_token_id is 248320"));
	file_text(scratch, "generation_config.json", "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10]}");
	assert_int_equal(target_try(&c), TD_E_UNSUPPORTED);
	file_text(scratch, "generation_config.json", "{");
	assert_int_equal(target_try(&c), TD_E_FORMAT);
}

static void test_target_flat(void **state)
{
	struct td_target_config c;
	json_t *root = json_loads(target4b, 0, NULL), *flat = json_object_get(root, "text_config");
	char *text;

	(void)state;
	json_object_del(flat, "rope_parameters");
	json_object_set_new(flat, "rope_theta", json_real(5e6));
	json_object_set_new(flat, "partial_rotary_factor", json_real(0.5));
	json_object_set_new(flat, "num_hidden_layers", json_integer(3));
	json_object_set_new(flat, "layer_types", json_loads("[\"full_attention\",\"linear_attention\",\"full_attention\"]", 0, NULL));
	text = json_dumps(flat, 0);
	file_text(scratch, "config.json", text);
	free(text);
	json_decref(root);
	assert_int_equal(target_try(&c), 0);
	assert_string_equal(c.model_type, "qwen3_5_text");
	assert_int_equal(c.rotary_dim, 128);
	assert_true(c.rope_theta == 5e6f);
	assert_int_equal(c.tied, 0);
	assert_int_equal(c.full_attention[0], 1);
	assert_int_equal(c.full_attention[1], 0);
	assert_int_equal(c.full_attention[2], 1);
}

#define GROUP(weights) \
	"{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":" \
	"{\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32" weights "}}}}"
#define TWO_GROUPS \
	"{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":4,\"group_size\":32}}," \
	"\"b\":{\"weights\":{\"num_bits\":4,\"group_size\":64}},\"c\":{\"weights\":{\"num_bits\":4,\"group_size\":32}}}}"

struct bad {
	const char *path, *value;
	int code;
	const char *text;
};

static void test_target_refused(void **state)
{
	static const struct bad bad[] = {
		{ "model_type", "\"llama\"", TD_E_UNSUPPORTED, "model_type llama" },
		{ "model_type", "\"qwen3_5_moe\"", TD_E_UNSUPPORTED, "model_type qwen3_5_moe" },
		{ "model_type", NULL, TD_E_UNSUPPORTED, "model_type (none)" },
		{ "model_type", "5", TD_E_FORMAT, "model_type is not a string" },
		{ "text_config", NULL, TD_E_FORMAT, "no text_config" },
		{ "text_config", "[]", TD_E_FORMAT, "text_config is not an object" },
		{ "text_config.model_type", "\"qwen3_5_moe_text\"", TD_E_UNSUPPORTED, "qwen3_5_moe_text" },
		{ "text_config.num_hidden_layers", NULL, TD_E_FORMAT, "num_hidden_layers is missing" },
		{ "text_config.num_hidden_layers", "null", TD_E_FORMAT, "num_hidden_layers is missing" },
		{ "text_config.num_hidden_layers", "0", TD_E_FORMAT, "num_hidden_layers is 0" },
		{ "text_config.num_hidden_layers", "129", TD_E_FORMAT, "1..128" },
		{ "text_config.num_hidden_layers", "32.0", TD_E_FORMAT, "not an integer" },
		{ "text_config.num_hidden_layers", "\"32\"", TD_E_FORMAT, "not an integer" },
		{ "text_config.hidden_size", "1000000000", TD_E_FORMAT, "hidden_size is 1000000000" },
		{ "text_config.hidden_size", "-2560", TD_E_FORMAT, "hidden_size" },
		{ "text_config.hidden_size", "4294967296", TD_E_FORMAT, "4294967296" },
		{ "text_config.intermediate_size", "0", TD_E_FORMAT, "intermediate_size" },
		{ "text_config.vocab_size", "2147483647", TD_E_FORMAT, "vocab_size" },
		{ "text_config.vocab_size", "1", TD_E_FORMAT, "vocab_size" },
		{ "text_config.num_attention_heads", "0", TD_E_FORMAT, "num_attention_heads is 0" },
		{ "text_config.num_attention_heads", "1000000000", TD_E_FORMAT, "num_attention_heads" },
		{ "text_config.num_attention_heads", "15", TD_E_FORMAT, "no multiple of num_key_value_heads 4" },
		{ "text_config.num_key_value_heads", "0", TD_E_FORMAT, "num_key_value_heads" },
		{ "text_config.head_dim", NULL, TD_E_FORMAT, "head_dim is missing" },
		{ "text_config.head_dim", "100000", TD_E_FORMAT, "head_dim" },
		{ "text_config.linear_num_value_heads", "33", TD_E_FORMAT, "no multiple of linear_num_key_heads 16" },
		{ "text_config.linear_conv_kernel_dim", "5", TD_E_UNSUPPORTED, "linear_conv_kernel_dim is 5" },
		{ "text_config.rms_norm_eps", "0", TD_E_FORMAT, "rms_norm_eps" },
		{ "text_config.rms_norm_eps", "\"small\"", TD_E_FORMAT, "rms_norm_eps is not a number" },
		{ "text_config.max_position_embeddings", "0", TD_E_FORMAT, "max_position_embeddings" },
		{ "text_config.hidden_act", "\"gelu\"", TD_E_UNSUPPORTED, "hidden_act is gelu" },
		{ "text_config.attention_bias", "true", TD_E_UNSUPPORTED, "attention_bias" },
		{ "text_config.attention_bias", "1", TD_E_FORMAT, "attention_bias" },
		{ "text_config.attn_output_gate", "false", TD_E_UNSUPPORTED, "attn_output_gate" },
		{ "text_config.num_experts", "64", TD_E_UNSUPPORTED, "num_experts" },
		{ "text_config.layer_types", "[\"full_attention\"]", TD_E_FORMAT, "layer_types names 1 layers" },
		{ "text_config.layer_types", "\"full\"", TD_E_FORMAT, "layer_types is not a list" },
		{ "text_config.full_attention_interval", "0", TD_E_FORMAT, "full_attention_interval" },
		{ "text_config.eos_token_id", "-1", TD_E_FORMAT, "eos_token_id is -1" },
		{ "text_config.eos_token_id", "248320", TD_E_FORMAT, "eos_token_id is 248320" },
		{ "text_config.eos_token_id", "[1,\"x\"]", TD_E_FORMAT, "eos_token_id[1]" },
		{ "text_config.rope_parameters", NULL, TD_E_FORMAT, "rope_theta is missing" },
		{ "text_config.rope_parameters.rope_theta", "0", TD_E_FORMAT, "rope_theta is 0" },
		{ "text_config.rope_parameters.rope_type", "\"yarn\"", TD_E_UNSUPPORTED, "type yarn" },
		{ "text_config.rope_parameters.partial_rotary_factor", "0.0123", TD_E_FORMAT, "partial_rotary_factor" },
		{ "text_config.rope_parameters.partial_rotary_factor", "2", TD_E_FORMAT, "partial_rotary_factor" },
		{ "quantization_config", "{\"quant_method\":\"awq\",\"bits\":4}", TD_E_UNSUPPORTED, "awq" },
		{ "quantization_config", "{\"quant_method\":\"gptq\",\"bits\":4}", TD_E_UNSUPPORTED, "gptq" },
		{ "quantization_config", "{\"quant_method\":\"compressed-tensors\"}", TD_E_FORMAT, "no config_groups" },
		{ "quantization_config", "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":3}}", TD_E_FORMAT, "config_groups.g" },
		{ "quantization_config", "7", TD_E_FORMAT, "quantization_config is not an object" },
		{ "quantization_config", GROUP(",\"num_bits\":8"), TD_E_UNSUPPORTED, "8 bits" },
		{ "quantization_config", GROUP(",\"type\":\"float\""), TD_E_UNSUPPORTED, "float" },
		{ "quantization_config", GROUP(",\"symmetric\":false"), TD_E_UNSUPPORTED, "asymmetric" },
		{ "quantization_config", GROUP(",\"actorder\":\"group\""), TD_E_UNSUPPORTED, "actorder" },
		{ "quantization_config", GROUP(",\"strategy\":\"block\""), TD_E_UNSUPPORTED, "strategy block" },
		{ "quantization_config", GROUP(",\"group_size\":0"), TD_E_FORMAT, "group_size is 0" },
		{ "quantization_config", GROUP(",\"group_size\":-1"), TD_E_FORMAT, "group_size is -1" },
	};
	struct td_target_config c;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		config_write(target4b, bad[i].path, bad[i].value);
		expect(bad[i].path, bad[i].value, target_try(&c), bad[i].code, bad[i].text);
	}
	config_write(target4b, "quantization_config.transform_config.r1", "{}");
	expect("transform_config", NULL, target_try(&c), TD_E_UNSUPPORTED, "transform_config");
	config_write(target4b, "quantization_config", GROUP(""));
	assert_int_equal(target_try(&c), 0);
	assert_int_equal(c.quant.bits, 4);
	assert_true(c.quant.n_sizes == 1 && c.quant.size[0] == 32);
	assert_int_equal(c.quant.symmetric, 1);
	config_write(target4b, "quantization_config", GROUP(",\"strategy\":\"channel\""));
	assert_int_equal(target_try(&c), 0);
	assert_true(c.quant.n_sizes == 1 && c.quant.size[0] == -1);
	config_write(target4b, "quantization_config", TWO_GROUPS);
	assert_int_equal(target_try(&c), 0);
	assert_true(c.quant.n_sizes == 2 && c.quant.size[0] == 32 && c.quant.size[1] == 64);
}

static void test_files(void **state)
{
	struct td_target_config c;
	char path[128];

	(void)state;
	expect("no file", NULL, target_try(&c), TD_E_NOT_FOUND, "can't be opened");
	file_text(scratch, "config.json", "");
	expect("empty", NULL, target_try(&c), TD_E_FORMAT, "not valid JSON");
	file_text(scratch, "config.json", "[]");
	expect("list", NULL, target_try(&c), TD_E_FORMAT, "no JSON object");
	file_text(scratch, "config.json", "{\"model_type\":\"qwen3_5\",\"model_type\":\"qwen3_5\"}");
	expect("duplicate", NULL, target_try(&c), TD_E_FORMAT, "duplicate");
	file_text(scratch, "config.json", "{\"x\":NaN}");
	expect("NaN", NULL, target_try(&c), TD_E_FORMAT, "not valid JSON");
	snprintf(path, sizeof(path), "%s/config.json", scratch);
	must(truncate(path, 17 << 20) == 0, path);
	expect("large", NULL, target_try(&c), TD_E_TOO_LARGE, "bytes");
	unlink(path);
	must(mkfifo(path, 0600) == 0, path);
	expect("pipe", NULL, target_try(&c), TD_E_INVALID, "not a regular file");
}

static void test_drafter_published(void **state)
{
	static const int taps[] = { 1, 5, 9, 13, 17, 21, 25, 29 };
	struct td_drafter_config c;

	(void)state;
	config_write(drafter4b, NULL, NULL);
	assert_int_equal(drafter_try(&c), 0);
	assert_int_equal(c.layers, 6);
	assert_int_equal(c.hidden, 2560);
	assert_int_equal(c.intermediate, 9216);
	assert_int_equal(c.vocab, 248320);
	assert_int_equal(c.heads, 32);
	assert_int_equal(c.kv_heads, 8);
	assert_int_equal(c.head_dim, 128);
	assert_int_equal(c.window, 4096);
	assert_int_equal(c.block, 16);
	assert_int_equal(c.mask_id, 248077);
	assert_int_equal(c.target_layers, 32);
	assert_int_equal(c.n_taps, 8);
	for (int i = 0; i < 8; i++)
		assert_int_equal(c.tap[i], taps[i]);
	for (int i = 0; i < 6; i++) {
		assert_int_equal(c.sliding[i], i < 5);
		assert_int_equal(c.causal[i], i < 5);
	}
	assert_true(c.rope_theta == 1e7f);
}

static void causal_is(const char *path, const char *value, int sliding, int full)
{
	struct td_drafter_config c;

	config_write(drafter4b, path, value);
	assert_int_equal(drafter_try(&c), 0);
	assert_int_equal(c.causal[0], sliding);
	assert_int_equal(c.causal[5], full);
}

static void test_drafter_rules(void **state)
{
	static const int spread5[] = { 1, 8, 15, 22, 29 }, spread5of36[] = { 1, 9, 17, 25, 33 };
	struct td_drafter_config c;

	(void)state;
	causal_is("is_causal", "false", 0, 0);
	causal_is("is_causal", "true", 1, 1);
	causal_is("dflash_config.causal", "false", 0, 0);
	causal_is("dflash_config.causal", "true", 1, 1);
	causal_is("is_causal", "null", 1, 0);

	/* newer files keep the block's size beside the mask */
	config_write(drafter4b, "dflash_config", "{\"block_size\":8,\"mask_token_id\":3,\"target_layer_ids\":[5,2]}");
	assert_int_equal(drafter_try(&c), 0);
	assert_int_equal(c.block, 8);
	assert_true(c.n_taps == 2 && c.tap[0] == 5 && c.tap[1] == 2);

	/* no tap list: spread over the target, as published for 5 layers over 32 and 36, and by the halves-to-even rule */
	config_write(drafter4b, "dflash_config", "{\"mask_token_id\":3}");
	assert_int_equal(drafter_try(&c), 0);
	assert_int_equal(c.n_taps, 6);
	assert_int_equal(c.tap[0], 1);
	assert_int_equal(c.tap[1], 7); /* 1 + 28/5 = 6.6 */
	assert_int_equal(c.tap[5], 29);
	for (int k = 0; k < 2; k++) {
		json_t *root = json_loads(drafter4b, 0, NULL);
		char *text;

		json_object_del(root, "layer_types");
		json_object_set_new(root, "use_sliding_window", json_false());
		json_object_set_new(root, "num_hidden_layers", json_integer(5));
		json_object_set_new(root, "num_target_layers", json_integer(k ? 36 : 32));
		json_object_del(json_object_get(root, "dflash_config"), "target_layer_ids");
		text = json_dumps(root, 0);
		file_text(scratch, "config.json", text);
		free(text);
		json_decref(root);
		assert_int_equal(drafter_try(&c), 0);
		assert_int_equal(c.n_taps, 5);
		for (int i = 0; i < 5; i++)
			assert_int_equal(c.tap[i], k ? spread5of36[i] : spread5[i]);
		assert_int_equal(c.window, 0);
		assert_int_equal(c.sliding[4], 0);
	}

	/* Qwen3's own rule for layers that slide */
	config_write(drafter4b, "layer_types", NULL);
	assert_int_equal(drafter_try(&c), 0);
	assert_int_equal(c.sliding[0], 0);
	assert_int_equal(c.window, 0);
	json_t *root = json_loads(drafter4b, 0, NULL);
	json_object_del(root, "layer_types");
	json_object_set_new(root, "max_window_layers", json_integer(2));
	char *text = json_dumps(root, 0);
	file_text(scratch, "config.json", text);
	free(text);
	json_decref(root);
	assert_int_equal(drafter_try(&c), 0);
	assert_int_equal(c.sliding[1], 0);
	assert_int_equal(c.sliding[2], 1);
	assert_int_equal(c.window, 4096);
}

static void test_drafter_refused(void **state)
{
	static const struct bad bad[] = {
		{ "model_type", "\"qwen3_5_text\"", TD_E_UNSUPPORTED, "not supported as a drafter" },
		{ "model_type", "\"llama\"", TD_E_UNSUPPORTED, "model_type llama" },
		{ "architectures", "[\"DFlash2DraftModel\"]", TD_E_UNSUPPORTED, "architecture DFlash2DraftModel" },
		{ "architectures", "[\"Qwen3ForCausalLM\"]", TD_E_UNSUPPORTED, "architecture Qwen3ForCausalLM" },
		{ "architectures", "3", TD_E_FORMAT, "architectures is not a list" },
		{ "num_hidden_layers", "0", TD_E_FORMAT, "num_hidden_layers" },
		{ "num_attention_heads", "0", TD_E_FORMAT, "num_attention_heads is 0" },
		{ "num_attention_heads", "1000000000", TD_E_FORMAT, "num_attention_heads" },
		{ "num_key_value_heads", "5", TD_E_FORMAT, "no multiple" },
		{ "head_dim", "127", TD_E_FORMAT, "head_dim is 127" },
		{ "block_size", NULL, TD_E_FORMAT, "block_size is missing" },
		{ "block_size", "1", TD_E_FORMAT, "block_size is 1" },
		{ "block_size", "1000000000", TD_E_FORMAT, "block_size" },
		{ "dflash_config.mask_token_id", NULL, TD_E_FORMAT, "mask_token_id is missing" },
		{ "dflash_config.mask_token_id", "248320", TD_E_FORMAT, "mask_token_id is 248320" },
		{ "dflash_config.mask_token_id", "-1", TD_E_FORMAT, "mask_token_id" },
		{ "dflash_config", "[]", TD_E_FORMAT, "dflash_config is not an object" },
		{ "dflash_config.target_layer_ids", "[]", TD_E_FORMAT, "target_layer_ids has 0" },
		{ "dflash_config.target_layer_ids", "[1,32]", TD_E_FORMAT, "target_layer_ids[1] is 32" },
		{ "dflash_config.target_layer_ids", "[1,-1]", TD_E_FORMAT, "target_layer_ids[1] is -1" },
		{ "dflash_config.target_layer_ids", "[4,4]", TD_E_FORMAT, "layer 4 twice" },
		{ "dflash_config.target_layer_ids", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", TD_E_FORMAT, "17 entries" },
		{ "dflash_config.target_layer_ids", "\"all\"", TD_E_FORMAT, "not a list" },
		{ "layer_types", "[\"full_attention\"]", TD_E_FORMAT, "layer_types names 1" },
		{ "layer_types", "[1,2,3,4,5,6]", TD_E_UNSUPPORTED, "layer_types[0] is not a string" },
		{ "sliding_window", NULL, TD_E_FORMAT, "sliding_window is missing" },
		{ "sliding_window", "0", TD_E_FORMAT, "sliding_window is 0" },
		{ "is_causal", "\"no\"", TD_E_FORMAT, "is_causal" },
		{ "conv_kernel_size", "2", TD_E_UNSUPPORTED, "DFlash2" },
		{ "selector_rank", "256", TD_E_UNSUPPORTED, "DFlash2" },
		{ "dflash_config.selector_top_k", "16", TD_E_UNSUPPORTED, "DFlash2" },
		{ "dflash_config.use_swa", "true", TD_E_UNSUPPORTED, "use_swa" },
		{ "attention_bias", "true", TD_E_UNSUPPORTED, "attention_bias" },
		{ "add_swa_attention_sink_bias", "true", TD_E_UNSUPPORTED, "sink" },
		{ "draft_vocab_size", "32000", TD_E_UNSUPPORTED, "draft_vocab_size" },
		{ "target_hidden_size", "4096", TD_E_UNSUPPORTED, "target_hidden_size" },
		{ "is_neox_style", "false", TD_E_UNSUPPORTED, "is_neox_style" },
		{ "final_logit_softcapping", "30.0", TD_E_UNSUPPORTED, "final_logit_softcapping" },
		{ "input_embedding_scale", "2.0", TD_E_UNSUPPORTED, "input_embedding_scale" },
		{ "rope_scaling", "{\"type\":\"yarn\",\"factor\":4.0}", TD_E_UNSUPPORTED, "yarn" },
		{ "partial_rotary_factor", "0.5", TD_E_UNSUPPORTED, "partial_rotary_factor" },
		{ "rope_theta", NULL, TD_E_FORMAT, "rope_theta is missing" },
		{ "quantization_config", "{\"quant_method\":\"fp8\"}", TD_E_UNSUPPORTED, "fp8" },
	};
	struct td_drafter_config c;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		config_write(drafter4b, bad[i].path, bad[i].value);
		expect(bad[i].path, bad[i].value, drafter_try(&c), bad[i].code, bad[i].text);
	}
	file_text(scratch, "config.json", "{\"model_type\":\"qwen3\",\"num_hidden_layers\":36}");
	expect("plain qwen3", NULL, drafter_try(&c), TD_E_UNSUPPORTED, "is not a DFlash drafter");
	config_write(drafter4b, "draft_vocab_size", "248320");
	assert_int_equal(drafter_try(&c), 0);
	config_write(drafter4b, "final_logit_softcapping", "null");
	assert_int_equal(drafter_try(&c), 0);
}

static void test_pair(void **state)
{
	struct td_target_config t;
	struct td_drafter_config good, d;

	(void)state;
	config_write(target4b, NULL, NULL);
	assert_int_equal(target_try(&t), 0);
	config_write(drafter4b, NULL, NULL);
	assert_int_equal(drafter_try(&good), 0);
	assert_int_equal(td_pair_check(&t, &good, &err), 0);
#define PAIR(change, message) \
	do { \
		d = good; \
		change; \
		assert_int_equal(td_pair_check(&t, &d, &err), TD_E_MISMATCH); \
		if (!strstr(err.text, message)) \
			fail_msg("%s: %s", #change, err.text); \
	} while (0)
	PAIR(d.hidden = 2048, "hidden_size: target 2560, drafter 2048");
	PAIR(d.vocab = 151936, "vocab_size: target 248320, drafter 151936");
	PAIR(d.target_layers = 36, "target 32, drafter expects 36");
	PAIR((d.target_layers = 0, d.tap[7] = 32), "taps layer 32, target has layers 0..31");
	PAIR(d.block = 17, "block_size: drafter 17");
	PAIR(d.mask_id = 248320, "mask_token_id: drafter 248320");
	d = good;
	d.target_layers = 0;
	d.tap[7] = 31;
	assert_int_equal(td_pair_check(&t, &d, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_target_published, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_target_tied_and_eos, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_target_flat, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_target_refused, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_files, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_drafter_published, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_drafter_rules, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_drafter_refused, setup, scratch_teardown),
		cmocka_unit_test_setup_teardown(test_pair, setup, scratch_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
