/*
 * checkpoint.c: the tensors of the made-up pair, and the file that they are written to (checkpoint.h).
 */
#include "tests/lib/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/model_files.h"

void ck_finish(struct ck *c)
{
	for (int i = 0; i < c->n; i++)
		free(c->t[i].data);
	memset(c, 0, sizeof(*c));
}

struct ck_tensor *ck_find(struct ck *c, const char *name)
{
	for (int i = 0; i < c->n; i++)
		if (!strcmp(c->t[i].name, name))
			return &c->t[i];
	return NULL;
}

struct ck_tensor *ck_add(struct ck *c, const char *dtype, const char *name, long a, long b, long d)
{
	struct ck_tensor *t = &c->t[c->n++];
	int size = !strcmp(dtype, "I64") ? 8 : !strcmp(dtype, "F32") || !strcmp(dtype, "I32") ? 4 : !strcmp(dtype, "I8") ? 1 : 2;
	size_t n = (size_t)a * (size_t)(b ? b : 1) * (size_t)(d ? d : 1);
	uint32_t x = 12345;

	must(c->n <= 96, "too many tensors");
	memset(t, 0, sizeof(*t));
	snprintf(t->name, sizeof(t->name), "%s", name);
	snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
	for (const char *p = name; *p; p++)
		x = x * 31 + (unsigned char)*p;
	t->dim[0] = a;
	t->dim[1] = b;
	t->dim[2] = d;
	t->bytes = n * (size_t)size;
	t->data = malloc(t->bytes + 1);
	must(t->data != NULL, "malloc");
	for (size_t i = 0; i < t->bytes; i++)
		t->data[i] = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
	for (size_t i = 0; i < n && size == 2; i++)
		t->data[2 * i + 1] = 0x3c | (t->data[2 * i + 1] & 0x83); /* finite in BF16 and F16 */
	for (size_t i = 0; i < n && !strcmp(dtype, "F32"); i++)
		t->data[4 * i + 3] = 0x3c;
	return t;
}

static struct ck_tensor *addf(struct ck *c, const char *dtype, const char *prefix, const char *name, long a, long b, long d)
{
	char full[128];

	snprintf(full, sizeof(full), "%s%s", prefix, name);
	return ck_add(c, dtype, full, a, b, d);
}

void ck_drop(struct ck *c, const char *name)
{
	struct ck_tensor *t = ck_find(c, name);

	must(t != NULL, name);
	free(t->data);
	*t = c->t[--c->n];
}

/* A module: BF16 for group 0, packed otherwise. */
void ck_linear(struct ck *c, const char *prefix, const char *name, int out, int in, int group)
{
	char at[100];
	int64_t shape[2] = { out, in };

	snprintf(at, sizeof(at), "%s%s", prefix, name);
	if (!group) {
		addf(c, "BF16", at, ".weight", out, in, 0);
		return;
	}
	addf(c, "I32", at, ".weight_packed", out, in / 8, 0);
	addf(c, "BF16", at, ".weight_scale", out, in / group, 0);
	memcpy(addf(c, "I64", at, ".weight_shape", 2, 0, 0)->data, shape, 16);
}

void ck_reformat(struct ck *c, const char *module, int out, int in, int group)
{
	static const char *const suffix[] = { ".weight", ".weight_packed", ".weight_scale", ".weight_shape" };
	char name[128];

	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "%s%s", module, suffix[i]);
		if (ck_find(c, name))
			ck_drop(c, name);
	}
	ck_linear(c, "", module, out, in, group);
}

void ck_write(const struct ck *c, const char *dir, const char *file, int lead)
{
	char *header = malloc(1 << 16);
	size_t at = 0, offset = 0;
	unsigned char *bytes;

	must(header != NULL, "malloc");
	header[at++] = '{';
	for (int i = 0; i < c->n; i++) {
		const struct ck_tensor *t = &c->t[i];

		at += (size_t)sprintf(header + at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%ld", i ? "," : "", t->name, t->dtype, t->dim[0]);
		for (int k = 1; k < 3 && t->dim[k]; k++)
			at += (size_t)sprintf(header + at, ",%ld", t->dim[k]);
		at += (size_t)sprintf(header + at, "],\"data_offsets\":[%zu,%zu]}", offset, offset + t->bytes);
		offset += t->bytes;
	}
	header[at++] = '}';
	for (; at % 8; at++)
		header[at] = ' ';
	for (; lead > 0; lead--)
		header[at++] = ' ';
	offset = st_bytes(header, at, -1, offset, &bytes);
	for (int i = 0; i < c->n; i++) {
		memcpy(bytes + 8 + at, c->t[i].data, c->t[i].bytes);
		at += c->t[i].bytes;
	}
	file_write(dir, file, bytes, offset);
	free(bytes);
	free(header);
}

static void mlp(struct ck *c, const char *at, int group)
{
	addf(c, "BF16", at, "input_layernorm.weight", 16, 0, 0);
	addf(c, "BF16", at, "post_attention_layernorm.weight", 16, 0, 0);
	ck_linear(c, at, "mlp.gate_proj", 24, 16, group);
	ck_linear(c, at, "mlp.up_proj", 24, 16, group);
	ck_linear(c, at, "mlp.down_proj", 16, 24, group);
}

static void attention(struct ck *c, const char *at, int q, int kv, int out, int group)
{
	ck_linear(c, at, "self_attn.q_proj", q, 16, group);
	ck_linear(c, at, "self_attn.k_proj", kv, 16, group);
	ck_linear(c, at, "self_attn.v_proj", kv, 16, group);
	ck_linear(c, at, "self_attn.o_proj", 16, out, group);
}

void ck_target(struct ck *c, const char *prefix, int group)
{
	char at[64];

	memset(c, 0, sizeof(*c));
	addf(c, "BF16", prefix, "embed_tokens.weight", 10, 16, 0);
	addf(c, "BF16", prefix, "norm.weight", 16, 0, 0);
	for (int i = 0; i < 3; i++) {
		snprintf(at, sizeof(at), "%slayers.%d.", prefix, i);
		mlp(c, at, group);
		if (i == 1) {
			attention(c, at, 32, 8, 16, group);
			addf(c, "BF16", at, "self_attn.q_norm.weight", 8, 0, 0);
			addf(c, "F16", at, "self_attn.k_norm.weight", 8, 0, 0);
			continue;
		}
		ck_linear(c, at, "linear_attn.in_proj_qkv", 32, 16, group);
		ck_linear(c, at, "linear_attn.in_proj_z", 16, 16, group);
		ck_linear(c, at, "linear_attn.in_proj_b", 2, 16, 0);
		ck_linear(c, at, "linear_attn.in_proj_a", 2, 16, 0);
		ck_linear(c, at, "linear_attn.out_proj", 16, 16, group);
		addf(c, "BF16", at, "linear_attn.conv1d.weight", 32, 1, 4);
		addf(c, "F32", at, "linear_attn.A_log", 2, 0, 0);
		addf(c, "BF16", at, "linear_attn.dt_bias", 2, 0, 0);
		addf(c, "F32", at, "linear_attn.norm.weight", 8, 0, 0);
	}
}

void ck_drafter(struct ck *c, int group)
{
	char at[64];

	memset(c, 0, sizeof(*c));
	ck_linear(c, "", "fc", 16, 32, group);
	ck_add(c, "BF16", "hidden_norm.weight", 16, 0, 0);
	ck_add(c, "BF16", "norm.weight", 16, 0, 0);
	for (int i = 0; i < 2; i++) {
		snprintf(at, sizeof(at), "layers.%d.", i);
		mlp(c, at, group);
		attention(c, at, 128, 64, 128, group);
		addf(c, "BF16", at, "self_attn.q_norm.weight", 64, 0, 0);
		addf(c, "BF16", at, "self_attn.k_norm.weight", 64, 0, 0);
	}
}
