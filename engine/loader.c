/*
 * loader.c: the two-pass arena builder: names, shapes and formats of modules, their place in the arena, their contents.
 *
 * A module is BF16 (`weight`) or packed INT4 (`weight_packed`, `weight_scale`, `weight_shape`; qwen35 4.3), by which tensors exist; the config
 * only cross-checks. The loader owns nothing but temporary aligned copies; the arena is the caller's once td__weights_load returned 0. What must
 * never happen: an address that depends on the pass, or a tensor whose shape was not compared with the config before its data was touched.
 */
#include "engine/loader.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bf16.h"
#include "engine/quantise.h"

enum { ALIGN = 256, ARENA_ALIGN = 2 << 20, UPLOAD_CHUNK = 64 << 20, QUANTISE_ROWS = 16384, NAME_MAX_BYTES = 256 };

/* A module as found in the checkpoint. */
struct found {
	enum td_weight_kind kind; /* in the arena */
	int group;
	int codes; /* packed in the file, BF16 in the arena: columns that share a scale */
	const struct td_st_tensor *weight, *scale;
};

static __attribute__((format(printf, 3, 4))) int fail(struct td__loader *l, int code, const char *fmt, ...)
{
	char text[360];
	va_list ap;

	if (l->rc)
		return l->rc;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	l->rc = td_error_set(l->err, code, "%s: %s", l->dir, text);
	return l->rc;
}

void td__load_at(struct td__loader *l, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(l->where, sizeof(l->where), fmt, ap);
	va_end(ap);
}

static const char *full_name(const struct td__loader *l, const char *name, const char *suffix, char buf[NAME_MAX_BYTES])
{
	snprintf(buf, NAME_MAX_BYTES, "%s%s%s%s", l->prefix, l->where, name, suffix);
	return buf;
}

static struct td_st_tensor *find(struct td__loader *l, const char *name, const char *suffix)
{
	char buf[NAME_MAX_BYTES];

	return td_st_find(l->st, full_name(l, name, suffix, buf));
}

int td__load_has(struct td__loader *l, const char *name)
{
	return find(l, name, "") != NULL;
}

static struct td_st_tensor *need(struct td__loader *l, const char *name, const char *suffix)
{
	struct td_st_tensor *t = l->rc ? NULL : find(l, name, suffix);
	char buf[NAME_MAX_BYTES];

	if (!t)
		fail(l, TD_E_FORMAT, "tensor %s is missing", full_name(l, name, suffix, buf));
	return t;
}

static const char *shape_text(const struct td_st_tensor *t, char buf[128])
{
	int at = 0;

	buf[0] = '\0';
	for (int i = 0; i < t->n_dims && at < 100; i++)
		at += snprintf(buf + at, 128 - (size_t)at, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
	return buf;
}

static int is_shape(const struct td_st_tensor *t, int64_t a, int64_t b)
{
	return t->n_dims == 2 && t->dim[0] == a && t->dim[1] == b;
}

static void need_matrix(struct td__loader *l, const struct td_st_tensor *t, enum td_dtype dtype, const char *dtype_name, int64_t rows, int64_t cols)
{
	char got[128];

	if (l->rc || !t)
		return;
	if (t->dtype != dtype)
		fail(l, TD_E_UNSUPPORTED, "tensor %s is %s; only %s is supported there", t->name, t->dtype_name, dtype_name);
	else if (!is_shape(t, rows, cols))
		fail(l, TD_E_FORMAT, "tensor %s has shape [%s]; config.json asks for [%lld, %lld]", t->name, shape_text(t, got), (long long)rows,
			      (long long)cols);
}

/* ---- the arena ---------------------------------------------------------------------------------------------------------------------------- */

static void *reserve(struct td__loader *l, size_t bytes)
{
	size_t at = l->at;

	l->at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
	return (void *)(l->base + at); /* an integer sum: the device's addresses are not ours to do pointer arithmetic on */
}

static void account(struct td__loader *l, uint64_t bytes)
{
	if (l->pass == TD__PLAN) {
		l->total += bytes;
		return;
	}
	l->done += bytes;
	if (l->how.progress && l->pass == TD__FILL)
		l->how.progress(l->how.ctx, "weights", l->done, l->total);
}

static int act8(const struct td__loader *l, enum td_weight_kind kind)
{
	return kind == TD_W_INT4 && l->how.form & TD_FORM_ACT8;
}

/* ---- values ------------------------------------------------------------------------------------------------------------------------------- */

static void bf16_check(struct td__loader *l, const struct td_st_tensor *t, const uint16_t *v, size_t n)
{
	int bad = 0;

	for (size_t i = 0; i < n; i++)
		bad |= (v[i] & 0x7f80) == 0x7f80;
	if (bad)
		fail(l, TD_E_FORMAT, "tensor %s holds NaN or infinity; the file is damaged", t->name);
}

const float *td__load_small(struct td__loader *l, const char *name, int n, int cols)
{
	struct td_st_tensor *t = need(l, name, "");
	size_t count = (size_t)n * (size_t)(cols ? cols : 1);
	void *at;
	float *v;
	char got[128];

	if (!t)
		return NULL;
	if (t->dtype != TD_F32 && t->dtype != TD_BF16 && t->dtype != TD_F16)
		fail(l, TD_E_UNSUPPORTED, "tensor %s is %s; only F32, BF16 and F16 are supported there", t->name, t->dtype_name);
	else if (!(cols ? is_shape(t, n, cols) || (t->n_dims == 3 && t->dim[0] == n && t->dim[1] == 1 && t->dim[2] == cols) : t->n_dims == 1 && t->dim[0] == n))
		fail(l, TD_E_FORMAT, "tensor %s has shape [%s]; config.json asks for %d x %d", t->name, shape_text(t, got), n,
			      cols ? cols : 1);
	at = reserve(l, count * sizeof(float));
	if (!l->rc && l->pass == TD__FILL) {
		v = malloc(count * sizeof(float));
		if (!v)
			fail(l, TD_E_NOMEM, "no memory for tensor %s", t->name);
		for (size_t i = 0; i < count && !l->rc; i++) {
			v[i] = td_st_value(t, i);
			if (!isfinite(v[i]))
				fail(l, TD_E_FORMAT, "tensor %s holds NaN or infinity; the file is damaged", t->name);
		}
		if (!l->rc)
			l->ops->upload(l->dev, at, v, count * sizeof(float));
		free(v);
	}
	account(l, t->bytes);
	return at;
}

/* The exponent and the power are rounded to float32 each, as the models were trained with: at position 262,144 a last-bit difference of a
 * frequency would already be an angle that shows. */
const float *td__load_inv_freq(struct td__loader *l, int dim, float theta)
{
	float v[512];
	int n = dim / 2;
	void *at = reserve(l, (size_t)n * sizeof(float));

	if (n > (int)(sizeof(v) / sizeof(*v)))
		fail(l, TD_E_UNSUPPORTED, "rotary over %d dimensions is not supported", dim);
	if (l->rc || l->pass != TD__FILL)
		return at;
	for (int j = 0; j < n; j++)
		v[j] = 1.0f / (float)pow(theta, (float)(2 * j) / (float)dim);
	l->ops->upload(l->dev, at, v, (size_t)n * sizeof(float));
	return at;
}

/* The tensor's bytes at an address fit for words of 4 bytes; *copy is to be freed. Only files of foreign writers need the copy. */
static const void *aligned(struct td__loader *l, const struct td_st_tensor *t, void **copy)
{
	if ((uintptr_t)t->data % 4 == 0)
		return t->data;
	*copy = malloc(t->bytes + 1);
	if (!*copy) {
		fail(l, TD_E_NOMEM, "no memory for tensor %s", t->name);
		return NULL;
	}
	memcpy(*copy, t->data, t->bytes);
	return *copy;
}

void *td__load_table(struct td__loader *l, const char *name, int rows, int cols)
{
	struct td_st_tensor *t = need(l, name, "");
	void *at, *copy = NULL;
	const char *from;

	if (!t)
		return NULL;
	need_matrix(l, t, TD_BF16, "BF16", rows, cols);
	at = reserve(l, l->ops->pack_bytes(TD_W_BF16, rows, cols, 0));
	if (l->rc)
		return NULL;
	if (l->pass != TD__FILL) {
		account(l, t->bytes);
		return at;
	}
	from = aligned(l, t, &copy);
	for (size_t i = 0; i < t->bytes && !l->rc; i += UPLOAD_CHUNK) {
		size_t n = t->bytes - i < UPLOAD_CHUNK ? t->bytes - i : UPLOAD_CHUNK;

		bf16_check(l, t, (const uint16_t *)(const void *)(from + i), n / 2);
		if (!l->rc)
			l->ops->upload(l->dev, (char *)at + i, from + i, n);
		account(l, n);
	}
	free(copy);
	return at;
}

/* Codes and scales stand in host memory until the backend has them: a quarter of the table. The values are looked at piece by piece before they are used. */
static void quantise(struct td__loader *l, const struct td_st_tensor *t, const struct td_linear *w)
{
	size_t words = (size_t)w->in / 8, groups = (size_t)(w->in / w->group), row = (size_t)w->in;
	uint32_t *codes = malloc((size_t)w->out * words * sizeof(*codes));
	uint16_t *scale = malloc((size_t)w->out * groups * sizeof(*scale));
	const struct td_linear_part part = { .out = w->out, .weight = codes, .scale = scale };
	void *copy = NULL;
	const uint16_t *from = aligned(l, t, &copy);

	if (!codes || !scale)
		fail(l, TD_E_NOMEM, "no memory to quantise tensor %s", t->name);
	for (int r = 0; r < w->out && !l->rc; r += QUANTISE_ROWS) {
		int n = w->out - r < QUANTISE_ROWS ? w->out - r : QUANTISE_ROWS;

		bf16_check(l, t, from + (size_t)r * row, (size_t)n * row);
		if (!l->rc)
			td_quantise(from + (size_t)r * row, n, w->in, w->group, codes + (size_t)r * words, scale + (size_t)r * groups);
		account(l, (size_t)n * row * 2);
	}
	if (!l->rc) {
		l->rc = l->ops->pack(l->dev, w, &part, 1, l->err);
		if (l->rc)
			td_error_prefix(l->err, "%s: tensor %s", l->dir, t->name);
	}
	free(codes);
	free(scale);
	free(copy);
}

void td__load_quantised(struct td__loader *l, const char *name, int out, int in, struct td_linear *w)
{
	struct td_st_tensor *t = need(l, name, "");
	size_t packed;

	*w = (struct td_linear){ .kind = TD_W_INT4, .out = out, .in = in, .group = td_quantise_group(in), .act8 = act8(l, TD_W_INT4) };
	if (!t)
		return;
	need_matrix(l, t, TD_BF16, "BF16", out, in);
	packed = w->group ? l->ops->pack_bytes(w->kind, out, in, w->group) : 0;
	if (!packed)
		fail(l, TD_E_UNSUPPORTED, "tensor %s: rows of %d values can't be quantised in groups that are a multiple of %d; set model.head = bf16", t->name, in,
		     TD_QUANTISE_STEP);
	w->data = reserve(l, packed);
	if (l->rc)
		return;
	if (l->pass == TD__FILL)
		quantise(l, t, w);
	else
		account(l, t->bytes);
}

/* ---- modules ------------------------------------------------------------------------------------------------------------------------------ */

/* Formats of other quantisers: named, so that the message says what the user has. */
static int refuse_foreign(struct td__loader *l, const char *name, int in)
{
	const struct td_st_tensor *q = find(l, name, ".qweight");

	if (q)
		fail(l, TD_E_UNSUPPORTED, "%s is in %s format, which is not supported; use BF16 or compressed-tensors pack-quantized", q->name,
			      q->n_dims == 2 && q->dim[0] == in ? "AWQ" : "GPTQ");
	else if (find(l, name, ".weight_zero_point"))
		fail(l, TD_E_UNSUPPORTED, "%s%s%s has a weight_zero_point; asymmetric weights are not supported", l->prefix, l->where, name);
	else if (find(l, name, ".weight_g_idx"))
		fail(l, TD_E_UNSUPPORTED, "%s%s%s has a weight_g_idx; activation order is not supported", l->prefix, l->where, name);
	return l->rc;
}

/* weight_shape holds [out, in]; it is the one tensor whose values are compared in the plan. */
static void check_weight_shape(struct td__loader *l, const struct td_st_tensor *t, int out, int in)
{
	int64_t wide[2] = { 0 };
	int32_t narrow[2] = { 0 };

	if (l->rc)
		return;
	if (t->n_dims != 1 || t->dim[0] != 2 || (t->dtype != TD_I64 && t->dtype != TD_I32)) {
		fail(l, TD_E_FORMAT, "tensor %s is not a pair of integers", t->name);
		return;
	}
	memcpy(t->dtype == TD_I64 ? (void *)wide : (void *)narrow, t->data, t->bytes);
	if (t->dtype == TD_I32) {
		wide[0] = narrow[0];
		wide[1] = narrow[1];
	}
	if (wide[0] != out || wide[1] != in)
		fail(l, TD_E_FORMAT, "tensor %s says [%lld, %lld]; config.json asks for [%d, %d]", t->name, (long long)wide[0],
			      (long long)wide[1], out, in);
}

/* The tensors' shapes are what counts; a config that says otherwise is of other tensors. */
static void check_group(struct td__loader *l, const struct found *f, int in)
{
	const struct td_quant *q = l->quant;
	char said[128] = "";
	size_t at = 0;

	for (int i = 0; i < q->n_sizes; i++) {
		int size = q->size[i] < 0 ? in : q->size[i];

		if (size == f->group)
			return;
		at += (size_t)snprintf(said + at, sizeof(said) - at, q->size[i] < 0 ? "%s%d (a row)" : "%s%d", i ? " or " : "", size);
	}
	if (q->n_sizes)
		fail(l, TD_E_FORMAT, "tensor %s has groups of %d, quantization_config says %s", f->scale->name, f->group, said);
}

static void find_packed(struct td__loader *l, const char *name, int out, int in, struct found *f)
{
	const struct td_st_tensor *shape = need(l, name, ".weight_shape");
	int64_t groups;

	f->kind = TD_W_INT4;
	f->scale = need(l, name, ".weight_scale");
	if (l->rc)
		return;
	if (in % 8) {
		fail(l, TD_E_UNSUPPORTED, "tensor %s: %d inputs are no multiple of 8", f->weight->name, in);
		return;
	}
	need_matrix(l, f->weight, TD_I32, "I32 (eight 4-bit values a word)", out, in / 8);
	check_weight_shape(l, shape, out, in);
	groups = f->scale->n_dims == 2 ? f->scale->dim[1] : 0;
	if (!l->rc && (groups < 1 || groups > in || in % groups || (in / groups) % 8))
		fail(l, TD_E_FORMAT, "tensor %s: %lld scales a row don't divide %d inputs into groups of a multiple of 8", f->scale->name,
			      (long long)groups, in);
	need_matrix(l, f->scale, TD_BF16, "BF16", out, groups);
	if (l->rc)
		return;
	f->group = (int)(in / groups);
	check_group(l, f, in);
	if (l->how.form & TD_FORM_BF16) {
		f->kind = TD_W_BF16;
		f->codes = f->group;
		f->group = 0;
	}
}

static void find_module(struct td__loader *l, const char *name, int out, int in, struct found *f)
{
	char buf[NAME_MAX_BYTES];

	memset(f, 0, sizeof(*f));
	if (l->rc || refuse_foreign(l, name, in))
		return;
	f->weight = find(l, name, ".weight_packed");
	if (f->weight && find(l, name, ".weight")) {
		fail(l, TD_E_FORMAT, "module %s has both weight and weight_packed", full_name(l, name, "", buf));
	} else if (f->weight) {
		find_packed(l, name, out, in, f);
	} else {
		f->kind = TD_W_BF16;
		f->weight = need(l, name, ".weight");
		need_matrix(l, f->weight, TD_BF16, "BF16", out, in);
	}
}

/* The values of a packed module as BF16 (qwen35 4.3: (code - 8) * scale; the product is exact in float32), malloc'd. Replaces `codes`. */
static const void *expanded(struct td__loader *l, const struct found *f, const uint32_t *codes, const uint16_t *scale, void **copy)
{
	size_t words = f->weight->bytes / 4, per = (size_t)f->codes / 8;
	uint16_t *v = malloc(8 * words * sizeof(*v)), of[16];

	if (!v) {
		fail(l, TD_E_NOMEM, "no memory to expand tensor %s to BF16", f->weight->name);
		return NULL;
	}
	for (size_t i = 0; i < words; i++) {
		if (i % per == 0)
			for (int c = 0; c < 16; c++)
				of[c] = td_bf16((float)(c - 8) * td_bf16_float(scale[i / per]));
		for (int j = 0; j < 8; j++)
			v[8 * i + (size_t)j] = of[codes[i] >> (4 * j) & 15];
	}
	free(*copy);
	*copy = v;
	return v;
}

/* Packs the modules of one run; `found` and `m` have n entries. */
static void pack(struct td__loader *l, const struct found *found, const struct td__module *m, int n, const struct td_linear *w)
{
	struct td_linear_part part[TD_FUSED_MAX];
	void *copy[2 * TD_FUSED_MAX] = { NULL };

	for (int i = 0; i < n && !l->rc; i++) {
		const struct td_st_tensor *t = found[i].weight, *s = found[i].scale;

		part[i] = (struct td_linear_part){ .out = m[i].out };
		part[i].weight = aligned(l, t, &copy[2 * i]);
		part[i].scale = s ? aligned(l, s, &copy[2 * i + 1]) : NULL;
		if (l->rc)
			break;
		if (s)
			bf16_check(l, s, part[i].scale, s->bytes / 2);
		if (s && found[i].codes) {
			part[i].weight = expanded(l, &found[i], part[i].weight, part[i].scale, &copy[2 * i]);
			part[i].scale = NULL;
		} else if (!s)
			bf16_check(l, t, part[i].weight, t->bytes / 2);
	}
	if (!l->rc) {
		l->rc = l->ops->pack(l->dev, w, part, n, l->err);
		if (l->rc)
			td_error_prefix(l->err, "%s: tensor %s", l->dir, found[0].weight->name);
	}
	for (int i = 0; i < 2 * TD_FUSED_MAX; i++)
		free(copy[i]);
}

static void place(struct td__loader *l, const struct found *found, const struct td__module *m, int n, int in, struct td_linear *w)
{
	uint64_t bytes = 0;
	size_t packed;

	*w = (struct td_linear){ .kind = found->kind, .in = in, .group = found->group, .act8 = act8(l, found->kind) };
	for (int i = 0; i < n; i++) {
		w->out += m[i].out;
		bytes += found[i].weight->bytes + (found[i].scale ? found[i].scale->bytes : 0);
	}
	w->paired = l->paired && n == 2;
	packed = l->ops->pack_bytes(w->kind, w->out, w->in, w->group);
	if (packed == 0)
		fail(l, TD_E_UNSUPPORTED, "tensor %s: the %s backend has no form for %d x %d with groups of %d", found->weight->name, l->ops->name,
			      w->out, w->in, w->group);
	w->data = reserve(l, packed);
	if (!l->rc && l->pass == TD__FILL)
		pack(l, found, m, n, w);
	account(l, bytes);
}

void td__load_linear(struct td__loader *l, const char *name, int out, int in, struct td_linear *w)
{
	const struct td__module m = { name, out };
	struct found found;

	find_module(l, name, out, in, &found);
	if (!l->rc)
		place(l, &found, &m, 1, in, w);
}

void td__load_fused(struct td__loader *l, const struct td__module *m, int n, int in, struct td_fused *f)
{
	struct found found[TD_FUSED_MAX] = { { 0 } };

	memset(f, 0, sizeof(*f));
	for (int i = 0; i < n && !l->rc; i++)
		find_module(l, m[i].name, m[i].out, in, &found[i]);
	for (int i = 0, run; i < n && !l->rc; i += run) {
		for (run = 1; i + run < n && found[i + run].kind == found[i].kind && found[i + run].group == found[i].group;)
			run++;
		f->off[f->n] = f->out;
		place(l, &found[i], &m[i], run, in, &f->part[f->n]);
		f->out += f->part[f->n].out;
		f->n++;
	}
}

void td__load_gate_up(struct td__loader *l, const struct td__module m[2], int in, struct td_fused *f)
{
	l->paired = 1;
	td__load_fused(l, m, 2, in, f);
	l->paired = 0;
}

/* Rows [row0, all->out) of a fused map as views; 0 when a part that is cut has an order of its own, or the cut is not aligned. */
static int tail_view(const struct td_fused *all, int row0, struct td_fused *f)
{
	memset(f, 0, sizeof(*f));
	for (int i = 0; i < all->n; i++) {
		struct td_linear w = all->part[i];
		int skip = row0 - all->off[i];
		size_t bytes;

		if (skip >= w.out)
			continue;
		if (skip > 0) {
			bytes = (size_t)skip * (size_t)w.in * 2;
			if (w.kind != TD_W_BF16 || bytes % ALIGN)
				return 0;
			w.data = (void *)((uintptr_t)w.data + bytes);
			w.out -= skip;
		}
		f->off[f->n] = f->out;
		f->out += w.out;
		f->part[f->n++] = w;
	}
	return 1;
}

void td__load_tail(struct td__loader *l, const struct td__module *m, int n, int first, int in, const struct td_fused *all, struct td_fused *f)
{
	int row0 = 0;

	for (int i = 0; i < first; i++)
		row0 += m[i].out;
	if (!l->rc && !tail_view(all, row0, f))
		td__load_fused(l, m + first, n - first, in, f);
}

/* ---- the run ------------------------------------------------------------------------------------------------------------------------------ */

static const char *variant_of(const char *name)
{
	static const struct {
		const char *part, *what;
	} known[] = {
		{ "attention_conv", "DFlash2" },	 { "mlp_conv", "DFlash2" },	       { "candidate_selector", "DFlash2" },
		{ "aux_hidden_norm", "a norm per tap" }, { "sink", "attention with sinks" },   { "mask_embed", "a mask embedding of its own" },
		{ "d2t", "a draft vocabulary" },	 { "t2d", "a draft vocabulary" },      { ".bias", "biases" },
		{ ".experts.", "a mixture of experts" }, { "lora_", "a LoRA adapter" },	       { ".qweight", "AWQ or GPTQ" },
		{ "in_proj_qkvz", "Qwen3-Next" },	 { "in_proj_ba", "Qwen3-Next" },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (strstr(name, known[i].part))
			return known[i].what;
	return NULL;
}

static void check_unused(struct td__loader *l)
{
	static const char *const skip[] = { "model.visual.", "visual.", "mtp." };

	for (size_t i = 0; i < td_st_count(l->st) && !l->rc; i++) {
		const struct td_st_tensor *t = td_st_at(l->st, i);
		int known = t->used;

		for (size_t j = 0; j < sizeof(skip) / sizeof(*skip); j++)
			known |= !strncmp(t->name, skip[j], strlen(skip[j]));
		if (known)
			continue;
		if (variant_of(t->name))
			fail(l, TD_E_UNSUPPORTED, "tensor %s belongs to a variant that is not supported (%s)", t->name, variant_of(t->name));
		else
			fail(l, TD_E_FORMAT, "tensor %s is not part of the model that config.json describes", t->name);
	}
}

static void run_pass(struct td__loader *l, enum td__pass pass, td__build *build, void *weights, uintptr_t base)
{
	l->pass = pass;
	l->base = base;
	l->at = 0;
	l->where[0] = '\0';
	build(l, weights);
}

static size_t plan(struct td__loader *l, const struct td__weights_kind *kind, void *weights)
{
	run_pass(l, TD__PLAN, kind->build, weights, 0);
	check_unused(l);
	return (l->at + td__note_bytes(kind) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static int run(struct td__loader *l, const struct td__weights_kind *kind, void *weights, const char *fingerprint)
{
	struct td_arena *arena = (void *)((char *)weights + kind->arena);
	size_t size = plan(l, kind, weights);

	if (l->rc)
		return l->rc;
	l->rc = l->ops->arena_create(l->dev, size, arena, l->err);
	if (l->rc)
		return td_error_prefix(l->err, "%s: no arena of %zu bytes", l->dir, size);
	td_st_fill(l->st);
	run_pass(l, TD__FILL, kind->build, weights, (uintptr_t)arena->base);
	if (!l->rc)
		l->rc = td__note_write(kind, l->ops, l->dev, weights, arena, fingerprint, l->err);
	if (!l->rc && (l->rc = l->ops->sync(l->dev, l->err)) != 0)
		td_error_prefix(l->err, "%s", l->dir);
	if (l->rc) {
		l->ops->arena_release(l->dev, arena);
		memset(arena, 0, sizeof(*arena));
	}
	return l->rc;
}

static int load(struct td__loader *l, const struct td__weights_kind *kind, void *weights, char fingerprint[256])
{
	l->rc = td_st_open(l->dir, &l->st, l->err);
	if (!l->rc)
		l->rc = td__fingerprint(l->ops, l->dir, l->st, l->how.form, fingerprint, l->err);
	if (!l->rc)
		run(l, kind, weights, fingerprint);
	td_st_close(l->st);
	return l->rc;
}

/* Weights that know their configuration, and a loader for them; NULL with l->rc set. */
static void *begin(struct td__loader *l, const struct td__weights_kind *kind)
{
	char *w = calloc(1, kind->size);

	if (!w) {
		fail(l, TD_E_NOMEM, "no memory");
		return NULL;
	}
	l->quant = (const void *)(w + kind->quant);
	l->rc = kind->config(l->dir, w, l->err);
	if (l->rc) {
		free(w);
		return NULL;
	}
	return w;
}

int td__weights_load(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, const char *dir, const struct td_load *how,
		     void **out, char fingerprint[256], struct td_error *err)
{
	struct td__loader l = { .ops = ops, .dev = dev, .dir = dir, .how = how ? *how : (struct td_load){ 0 }, .err = err };
	char *w = begin(&l, kind);

	*out = NULL;
	if (w && load(&l, kind, w, fingerprint))
		free(w);
	else
		*out = w;
	return l.rc;
}

int td__weights_plan(const struct td__weights_kind *kind, const struct td_ops *ops, const char *dir, int form, size_t *bytes, void **weights,
		     struct td_error *err)
{
	struct td__loader l = { .ops = ops, .dir = dir, .how = { .form = form }, .err = err };
	void *w = begin(&l, kind);

	*weights = NULL;
	if (!w)
		return l.rc;
	l.rc = td_st_open(dir, &l.st, err);
	if (!l.rc)
		*bytes = plan(&l, kind, w);
	td_st_close(l.st);
	if (l.rc)
		free(w);
	else
		*weights = w;
	return l.rc;
}

void td__weights_free(const struct td__weights_kind *kind, const struct td_ops *ops, struct td_dev *dev, void *weights)
{
	if (!weights)
		return;
	ops->arena_release(dev, (void *)((char *)weights + kind->arena));
	free(weights);
}
