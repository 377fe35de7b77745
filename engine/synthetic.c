/*
 * synthetic.c: models of the published shapes filled with random weights (synthetic.h), so that speed and memory can be measured without any.
 *
 * Contents. A few pools of random values, one for each kind and scale of tensor; a tensor is a window into its pool, each at an offset of its own,
 * so that no two are equal and the memory stays near that of the largest tensor (the embedding, whose rows must all differ: equal rows would be
 * ties of the logits). Scales are chosen so that activations stay near 1 at any depth: matrices have variance 1/in; norms are near 1;
 * decays of the recurrent layers lie in (0.8, 1), as in trained models. The embedding is small against the sum of the layers' outputs: were it of the
 * same size, a tied head would find the last token in its own residual stream and repeat it forever.
 *
 * Owns the reserved memory and the table of windows; the set (struct td_st) owns this. What must never happen: a value that depends on anything
 * but the name.
 */
#include "engine/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "engine/bf16.h"
#include "engine/config_read.h"

#define PREFIX "synthetic:"
enum { VERSION = 1 /* of the contents */, POOLS_MAX = 48, NAME_MAX_BYTES = 160, WINDOW = 64 /* bytes a window begins at */ };

/* ---- names -------------------------------------------------------------------------------------------------------------------------------- */

struct size {
	const char *name; /* target "qwen3.5-NAME" (tiny: "tiny"), drafter "dflash-NAME" */
	int layers, hidden, intermediate, heads, kv_heads, k_heads, v_heads, vocab, tied, max_position, eos[2];
	/* drafter, official layout: taps spread over the target, all layers but the last slide when there is a window */
	int d_layers, d_taps, d_heads, d_kv_heads, window, mask_id;
	int paper_intermediate; /* of the paper's layout, that of a Qwen3 of this width; 0: there is none */
};

/* qwen35 1.1, 1.2; dflash 1.3; tiny is what models/tiny holds */
static const struct size sizes[] = {
	{ "0.8b", 24, 1024, 3584, 8, 2, 16, 16, 248320, 1, 262144, { 248044, 248046 }, 6, 8, 16, 8, 4096, 248077, 3072 },
	{ "2b", 24, 2048, 6144, 8, 2, 16, 16, 248320, 1, 262144, { 248044, 248046 }, 6, 8, 16, 8, 4096, 248077, 6144 },
	{ "4b", 32, 2560, 9216, 16, 4, 16, 32, 248320, 1, 262144, { 248044, 248046 }, 6, 8, 32, 8, 4096, 248077, 9728 },
	{ "9b", 32, 4096, 12288, 16, 4, 16, 32, 248320, 0, 262144, { 248044, 248046 }, 6, 8, 32, 8, 4096, 248077, 12288 },
	{ "tiny", 8, 512, 1024, 4, 1, 4, 8, 8192, 1, 4096, { 8184, 8182 }, 3, 3, 4, 2, 0, 8185, 0 },
};
enum { PAPER_LAYERS = 5, PAPER_MASK = 248070, BLOCK = 16, HEAD_DIM = 256, LINEAR_DIM = 128, DRAFT_HEAD_DIM = 128 };

struct spec {
	const struct size *size;
	int drafter, paper;
	int group; /* 0: BF16 */
	uint64_t seed;
};

int td_synthetic(const char *dir)
{
	return strncmp(dir, PREFIX, sizeof(PREFIX) - 1) == 0;
}

static int is(const char *text, size_t n, const char *word)
{
	return strlen(word) == n && memcmp(text, word, n) == 0;
}

static int parse_name(const char *text, size_t n, struct spec *s)
{
	static const char paper[] = "-paper";
	size_t cut = n > sizeof(paper) - 1 && !memcmp(text + n - sizeof(paper) + 1, paper, sizeof(paper) - 1) ? n - sizeof(paper) + 1 : 0;
	char want[64];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		s->size = &sizes[i];
		snprintf(want, sizeof(want), "%s%s", strcmp(sizes[i].name, "tiny") ? "qwen3.5-" : "", sizes[i].name);
		s->drafter = s->paper = 0;
		if (is(text, n, want))
			return 1;
		snprintf(want, sizeof(want), "dflash-%s", sizes[i].name);
		s->drafter = 1;
		if (is(text, n, want))
			return 1;
		s->paper = 1;
		if (cut && sizes[i].paper_intermediate && is(text, cut, want))
			return 1;
	}
	return 0;
}

static int parse_option(const char *text, size_t n, struct spec *s)
{
	char *end;

	if (is(text, n, "int4"))
		s->group = s->group ? s->group : 128;
	else if (is(text, n, "bf16"))
		s->group = 0;
	else if (is(text, n, "g32") || is(text, n, "g128"))
		s->group = text[1] == '3' ? 32 : 128;
	else if (n > 5 && !strncmp(text, "seed=", 5) && text[5] >= '0' && text[5] <= '9') {
		s->seed = strtoull(text + 5, &end, 10);
		return end == text + n;
	} else
		return 0;
	return 1;
}

static int parse(const char *name, struct spec *s, struct td_error *err)
{
	const char *at = name + sizeof(PREFIX) - 1;
	size_t n = strcspn(at, ":");

	*s = (struct spec){ .group = 128 };
	if (!parse_name(at, n, s))
		return td_error_set(err, TD_E_NOT_FOUND,
				    "%.100s: there is no such model; there are targets qwen3.5-0.8b, -2b, -4b, -9b, tiny and drafters dflash-0.8b, -2b, -4b, -9b, "
				    "each also with -paper at its end, dflash-tiny", name);
	for (at += n; *at; at += n) {
		n = strcspn(++at, ":");
		if (!parse_option(at, n, s))
			return td_error_set(err, TD_E_INVALID, "%.100s: unknown option %.*s; there are int4, bf16, g32, g128, seed=N", name, (int)n, at);
	}
	return 0;
}

int td_synthetic_pair(const char *name, char **target, char **drafter, struct td_error *err)
{
	const char *options = name + strcspn(name, ":");
	struct spec s;
	char *t = NULL, *d = NULL;
	int rc;

	if (asprintf(&t, PREFIX "%s", name) < 0)
		return td_error_set(err, TD_E_NOMEM, "out of memory");
	rc = parse(t, &s, err);
	if (!rc && s.drafter)
		rc = td_error_set(err, TD_E_INVALID, "%.100s is a drafter; name the target", t);
	if (!rc && asprintf(&d, PREFIX "dflash-%s%s", s.size->name, options) < 0)
		rc = td_error_set(err, TD_E_NOMEM, "out of memory");
	if (rc) {
		free(t);
		return rc;
	}
	*target = t;
	*drafter = d;
	return 0;
}

int td__synthetic_identity(const char *name, uint64_t *identity, struct td_error *err)
{
	struct spec s;
	char text[128];
	int rc = parse(name, &s, err);

	if (rc)
		return rc;
	snprintf(text, sizeof(text), "synthetic %d %s %d%d %d %llu", VERSION, s.size->name, s.drafter, s.paper, s.group, (unsigned long long)s.seed);
	*identity = XXH3_64bits(text, strlen(text));
	return 0;
}

/* ---- configurations ----------------------------------------------------------------------------------------------------------------------- */

static void quant(const struct spec *s, struct td_quant *q)
{
	if (s->group)
		*q = (struct td_quant){ .bits = 4, .symmetric = 1, .n_sizes = 1, .size = { s->group } };
}

static int need(const char *name, int drafter, struct spec *s, struct td_error *err)
{
	int rc = parse(name, s, err);

	if (!rc && s->drafter != drafter)
		rc = td_error_set(err, TD_E_UNSUPPORTED, "%.100s is a %s, not a %s", name, s->drafter ? "drafter" : "target", drafter ? "drafter" : "target");
	return rc;
}

int td__synthetic_target(const char *name, struct td_target_config *c, struct td_error *err)
{
	struct spec s;
	const struct size *z;
	int rc = need(name, 0, &s, err);

	memset(c, 0, sizeof(*c));
	if (rc)
		return rc;
	z = s.size;
	snprintf(c->model_type, sizeof(c->model_type), "qwen3_5");
	c->layers = z->layers;
	c->hidden = z->hidden;
	c->intermediate = z->intermediate;
	c->vocab = z->vocab;
	c->heads = z->heads;
	c->kv_heads = z->kv_heads;
	c->head_dim = HEAD_DIM;
	c->rotary_dim = HEAD_DIM / 4;
	c->k_heads = z->k_heads;
	c->v_heads = z->v_heads;
	c->k_dim = c->v_dim = LINEAR_DIM;
	c->conv_kernel = TD_CONV_TAIL + 1;
	for (int i = 0; i < c->layers; i++)
		c->full_attention[i] = i % 4 == 3;
	c->rope_theta = 1e7f;
	c->eps = 1e-6f;
	c->attn_output_gate = 1;
	c->tied = z->tied;
	c->max_position = z->max_position;
	c->n_eos = 2;
	memcpy(c->eos, z->eos, sizeof(z->eos));
	quant(&s, &c->quant);
	return 0;
}

int td__synthetic_drafter(const char *name, struct td_drafter_config *c, struct td_error *err)
{
	struct spec s;
	const struct size *z;
	int rc = need(name, 1, &s, err);

	memset(c, 0, sizeof(*c));
	if (rc)
		return rc;
	z = s.size;
	c->layers = s.paper ? PAPER_LAYERS : z->d_layers;
	c->hidden = z->hidden;
	c->intermediate = s.paper ? z->paper_intermediate : z->intermediate;
	c->vocab = z->vocab;
	c->heads = z->d_heads;
	c->kv_heads = z->d_kv_heads;
	c->head_dim = DRAFT_HEAD_DIM;
	c->window = s.paper ? 0 : z->window;
	for (int i = 0; c->window && i < c->layers - 1; i++)
		c->sliding[i] = c->causal[i] = 1;
	c->block = BLOCK;
	c->mask_id = s.paper ? PAPER_MASK : z->mask_id;
	c->n_taps = s.paper ? PAPER_LAYERS : z->d_taps;
	td__taps_spread(c->n_taps, z->layers, c->tap);
	c->rope_theta = 1e7f;
	c->eps = 1e-6f;
	c->max_position = z->max_position;
	c->target_layers = z->layers;
	quant(&s, &c->quant);
	return 0;
}

/* ---- pools -------------------------------------------------------------------------------------------------------------------------------- */

enum kind {
	CODES, /* packed 4-bit values */
	SCALES, /* BF16, of codes */
	MATRIX, /* BF16 around 0 */
	ONES, /* BF16 around 1 */
	ONES_F32,
	A_LOG, /* F32 */
	DT_BIAS, /* BF16; element i goes with element i of A_LOG */
	SHAPES, /* I64 pairs */
};

struct pool {
	enum kind kind;
	float sigma; /* standard deviation of a weight */
	size_t windows, bytes, at; /* at: in the memory */
};

struct window {
	int pool;
	size_t offset, bytes;
	int64_t shape[2]; /* SHAPES */
};

struct td__synthetic {
	uint64_t seed;
	struct pool pool[POOLS_MAX];
	int n_pools;
	struct window *window;
	size_t n, room;
	char *mem;
	size_t size;
};

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t word(uint64_t key, size_t i)
{
	return mix(key + i * 0x9e3779b97f4a7c15u);
}

/* Uniform in [lo, hi): four values a word. */
static void fill_bf16(uint64_t key, float lo, float hi, uint16_t *v, size_t n)
{
	float step = (hi - lo) / 65536;

	for (size_t i = 0; i < n / 4; i++) {
		uint64_t w = word(key, i);

		for (int j = 0; j < 4; j++)
			v[4 * i + (size_t)j] = td_bf16(lo + step * (float)(w >> (16 * j) & 0xffff));
	}
}

/* Codes 1..15, so that they are centred on 8: a mean of -1/2 would add up over thousands of inputs of one sign. */
static void fill_codes(uint64_t key, uint64_t *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t w = word(key, i), any = w | w >> 1;

		any = (any | any >> 2) & 0x1111111111111111u;
		v[i] = w | (any ^ 0x1111111111111111u) << 3;
	}
}

static double unit(uint64_t key, size_t i)
{
	return (double)(word(key, i) >> 11) * 0x1p-53;
}

/* qwen35 3.4: decay exp(-A softplus(a + dt_bias)). Without a, rates A softplus(dt_bias) are spread evenly in their logarithm over 0.002..0.08. */
static void fill_decay(const struct td__synthetic *s, const struct pool *p)
{
	uint64_t key = mix(s->seed ^ A_LOG);
	char *v = s->mem + p->at;

	for (size_t i = 0; i < p->bytes / (p->kind == A_LOG ? 4 : 2); i++) {
		double a = 1 + 15 * unit(key, 2 * i), rate = 0.002 * pow(40, unit(key, 2 * i + 1));

		if (p->kind == A_LOG)
			((float *)(void *)v)[i] = (float)log(a);
		else
			((uint16_t *)(void *)v)[i] = td_bf16((float)log(expm1(rate / a)));
	}
}

static void fill_pool(const struct td__synthetic *s, const struct pool *p)
{
	uint64_t key = mix(s->seed + (uint64_t)(p - s->pool + 1) * 0xd1342543de82ef95u);
	char *v = s->mem + p->at;
	float wide = p->sigma * 1.7320508f; /* uniform in [-wide, wide) */

	switch (p->kind) {
	case CODES:
		fill_codes(key, (uint64_t *)(void *)v, p->bytes / 8);
		break;
	case SCALES: /* codes have a standard deviation of 4.18 */
		fill_bf16(key, 0.8f * p->sigma / 4.18f, 1.2f * p->sigma / 4.18f, (uint16_t *)(void *)v, p->bytes / 2);
		break;
	case MATRIX:
		fill_bf16(key, -wide, wide, (uint16_t *)(void *)v, p->bytes / 2);
		break;
	case ONES:
		fill_bf16(key, 0.9f, 1.1f, (uint16_t *)(void *)v, p->bytes / 2);
		break;
	case ONES_F32:
		for (size_t i = 0; i < p->bytes / 4; i++)
			((float *)(void *)v)[i] = 0.9f + 0.2f * (float)unit(key, i);
		break;
	case A_LOG:
	case DT_BIAS:
		fill_decay(s, p);
		break;
	case SHAPES: /* known from the start */
		break;
	}
}

/* ---- lists of tensors ----------------------------------------------------------------------------------------------------------------------- */

struct list {
	struct td__synthetic *s;
	struct td_st *st;
	const char *prefix;
	int layer; /* -1: outside of the layers */
	int group;
	int rc;
	struct td_error *err;
};

static int pool_of(struct list *l, enum kind kind, float sigma)
{
	struct td__synthetic *s = l->s;

	for (int i = 0; i < s->n_pools; i++)
		if (s->pool[i].kind == kind && s->pool[i].sigma == sigma)
			return i;
	if (s->n_pools == POOLS_MAX) {
		l->rc = td_error_set(l->err, TD_E_INTERNAL, "a synthetic model has more than %d kinds of tensors", POOLS_MAX);
		return 0;
	}
	s->pool[s->n_pools] = (struct pool){ .kind = kind, .sigma = sigma };
	return s->n_pools++;
}

/* Bytes between the beginnings of two windows: no multiple of a row's, and for the values of heads the same number of elements in both pools. */
static size_t stride(enum kind kind)
{
	return kind == CODES || kind == MATRIX ? 65536 + WINDOW : kind == SCALES ? 1024 + WINDOW : kind == A_LOG || kind == ONES_F32 ? 4 * WINDOW : 2 * WINDOW;
}

static void add(struct list *l, const char *name, const char *suffix, enum kind kind, float sigma, enum td_dtype dtype, const int64_t *dim, int n_dims)
{
	struct td__synthetic *s = l->s;
	size_t bytes = td_dtype_size(dtype), room = s->room ? 2 * s->room : 512;
	char full[NAME_MAX_BYTES], layer[32] = "";
	struct window *grown;
	struct pool *p;

	if (l->rc)
		return;
	if (l->layer >= 0)
		snprintf(layer, sizeof(layer), "layers.%d.", l->layer);
	snprintf(full, sizeof(full), "%s%s%s%s", l->prefix, layer, name, suffix);
	if (s->n == s->room) {
		grown = realloc(s->window, room * sizeof(*grown));
		if (!grown) {
			l->rc = td_error_set(l->err, TD_E_NOMEM, "no memory for %zu tensors", room);
			return;
		}
		s->window = grown;
		s->room = room;
	}
	l->rc = td__st_add(l->st, full, dtype, dim, n_dims, l->err);
	for (int i = 0; i < n_dims; i++)
		bytes *= (size_t)dim[i];
	s->window[s->n] = (struct window){ .pool = pool_of(l, kind, sigma), .bytes = bytes };
	p = &s->pool[s->window[s->n].pool];
	s->window[s->n].offset = p->windows++ * stride(kind);
	bytes = (bytes + s->window[s->n].offset + 7) & ~(size_t)7;
	p->bytes = bytes > p->bytes ? bytes : p->bytes;
	s->n++;
}

static void vector(struct list *l, const char *name, enum kind kind, float sigma, int n)
{
	const int64_t dim[1] = { n };

	add(l, name, "", kind, sigma, kind == ONES_F32 || kind == A_LOG ? TD_F32 : TD_BF16, dim, 1);
}

static void plain(struct list *l, const char *name, int out, int in, float gain)
{
	const int64_t dim[2] = { out, in };

	add(l, name, ".weight", MATRIX, gain / sqrtf((float)in), TD_BF16, dim, 2);
}

/* A module that the published quantised checkpoints pack (qwen35 4.5). */
static void module(struct list *l, const char *name, int out, int in)
{
	const int64_t codes[2] = { out, in / 8 }, scales[2] = { out, l->group ? in / l->group : 0 }, pair[1] = { 2 };

	if (!l->group) {
		plain(l, name, out, in, 1);
		return;
	}
	add(l, name, ".weight_packed", CODES, 0, TD_I32, codes, 2);
	add(l, name, ".weight_scale", SCALES, 1 / sqrtf((float)in), TD_BF16, scales, 2);
	add(l, name, ".weight_shape", SHAPES, 0, TD_I64, pair, 1);
	if (!l->rc)
		memcpy(l->s->window[l->s->n - 1].shape, (const int64_t[]){ out, in }, sizeof(int64_t[2]));
}

static void linear_attention(struct list *l, const struct td_target_config *c)
{
	int channels = 2 * c->k_heads * c->k_dim + c->v_heads * c->v_dim, value = c->v_heads * c->v_dim;
	const int64_t conv[3] = { channels, 1, c->conv_kernel };

	module(l, "linear_attn.in_proj_qkv", channels, c->hidden);
	module(l, "linear_attn.in_proj_z", value, c->hidden);
	plain(l, "linear_attn.in_proj_b", c->v_heads, c->hidden, 1);
	plain(l, "linear_attn.in_proj_a", c->v_heads, c->hidden, 0.25f);
	module(l, "linear_attn.out_proj", c->hidden, value);
	add(l, "linear_attn.conv1d.weight", "", MATRIX, 0.5f, TD_BF16, conv, 3);
	vector(l, "linear_attn.A_log", A_LOG, 0, c->v_heads);
	vector(l, "linear_attn.dt_bias", DT_BIAS, 0, c->v_heads);
	vector(l, "linear_attn.norm.weight", ONES_F32, 0, c->v_dim);
}

static void mlp(struct list *l, int hidden, int intermediate)
{
	module(l, "mlp.gate_proj", intermediate, hidden);
	module(l, "mlp.up_proj", intermediate, hidden);
	module(l, "mlp.down_proj", hidden, intermediate);
}

/* Norms of the target are stored without their 1 (qwen35 3.1). */
static void list_target(struct list *l, const struct td_target_config *c)
{
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;

	l->prefix = "model.language_model.";
	l->layer = -1;
	plain(l, "embed_tokens", c->vocab, c->hidden, 2);
	vector(l, "norm.weight", MATRIX, 0.05f, c->hidden);
	for (l->layer = 0; l->layer < c->layers; l->layer++) {
		vector(l, "input_layernorm.weight", MATRIX, 0.05f, c->hidden);
		vector(l, "post_attention_layernorm.weight", MATRIX, 0.05f, c->hidden);
		if (c->full_attention[l->layer]) {
			module(l, "self_attn.q_proj", 2 * q, c->hidden);
			module(l, "self_attn.k_proj", kv, c->hidden);
			module(l, "self_attn.v_proj", kv, c->hidden);
			module(l, "self_attn.o_proj", c->hidden, q);
			vector(l, "self_attn.q_norm.weight", MATRIX, 0.05f, c->head_dim);
			vector(l, "self_attn.k_norm.weight", MATRIX, 0.05f, c->head_dim);
		} else {
			linear_attention(l, c);
		}
		mlp(l, c->hidden, c->intermediate);
	}
	l->layer = -1;
	l->prefix = "";
	if (!c->tied)
		plain(l, "lm_head", c->vocab, c->hidden, 2);
}

static void list_drafter(struct list *l, const struct td_drafter_config *c)
{
	int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;

	l->prefix = "";
	l->layer = -1;
	module(l, "fc", c->hidden, c->n_taps * c->hidden);
	vector(l, "hidden_norm.weight", ONES, 0, c->hidden);
	vector(l, "norm.weight", ONES, 0, c->hidden);
	for (l->layer = 0; l->layer < c->layers; l->layer++) {
		vector(l, "input_layernorm.weight", ONES, 0, c->hidden);
		vector(l, "post_attention_layernorm.weight", ONES, 0, c->hidden);
		module(l, "self_attn.q_proj", q, c->hidden);
		module(l, "self_attn.k_proj", kv, c->hidden);
		module(l, "self_attn.v_proj", kv, c->hidden);
		module(l, "self_attn.o_proj", c->hidden, q);
		vector(l, "self_attn.q_norm.weight", ONES, 0, c->head_dim);
		vector(l, "self_attn.k_norm.weight", ONES, 0, c->head_dim);
		mlp(l, c->hidden, c->intermediate);
	}
}

/* Gives each pool its place and each tensor its address. The memory is only reserved: who looks at headers alone uses none of it. */
static int place(struct td__synthetic *s, struct td_st *st, const char *name, struct td_error *err)
{
	for (int i = 0; i < s->n_pools; i++) {
		s->pool[i].at = s->size;
		s->size += (s->pool[i].bytes + 4095) & ~(size_t)4095;
	}
	s->mem = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (s->mem == MAP_FAILED) {
		s->mem = NULL;
		return td_error_set(err, TD_E_NOMEM, "%.100s: no memory for %zu bytes of random weights", name, s->size);
	}
	for (size_t i = 0; i < s->n; i++) {
		const struct window *w = &s->window[i];
		struct td_st_tensor *t = td_st_at(st, i);

		t->data = s->mem + s->pool[w->pool].at + w->offset;
		t->bytes = w->bytes;
		if (s->pool[w->pool].kind == SHAPES)
			memcpy(s->mem + s->pool[w->pool].at + w->offset, w->shape, sizeof(w->shape));
	}
	return 0;
}

int td__synthetic_list(const char *name, struct td_st *st, struct td__synthetic **out, struct td_error *err)
{
	struct td__synthetic *s = calloc(1, sizeof(*s));
	struct list l = { .s = s, .st = st, .err = err };
	struct td_target_config target;
	struct td_drafter_config drafter;
	struct spec spec;

	if (!s)
		return td_error_set(err, TD_E_NOMEM, "%.100s: no memory", name);
	l.rc = parse(name, &spec, err);
	if (!l.rc) {
		s->seed = mix(spec.seed * 2 + (uint64_t)spec.drafter + 1);
		l.group = spec.group;
		l.rc = spec.drafter ? td__synthetic_drafter(name, &drafter, err) : td__synthetic_target(name, &target, err);
	}
	if (!l.rc && spec.drafter)
		list_drafter(&l, &drafter);
	else if (!l.rc)
		list_target(&l, &target);
	if (!l.rc)
		l.rc = place(s, st, name, err);
	if (l.rc) {
		td__synthetic_free(s);
		return l.rc;
	}
	*out = s;
	return 0;
}

void td__synthetic_fill(struct td__synthetic *s)
{
	for (int i = 0; i < s->n_pools; i++)
		fill_pool(s, &s->pool[i]);
}

void td__synthetic_free(struct td__synthetic *s)
{
	if (!s)
		return;
	if (s->mem)
		munmap(s->mem, s->size);
	free(s->window);
	free(s);
}
