/*
 * frame.c: taking frames apart and unpacking what strangers send.
 *
 * Three defences in order. The reader refuses a length over the cap when it has four bytes, and takes memory as bytes come, not as they are
 * announced. A walk over the wire form, by protobuf-c's own descriptors, then checks lengths and every string before anything is
 * built: it must be UTF-8 without NUL bytes (protobuf-c would hand over a C string that silently ends at the first one). Last, protobuf-c
 * unpacks through an allocator with a budget, since a repeated field of two bytes can cost a hundred bytes of structures.
 */
#include "proto/frame_internal.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "engine/utf8.h"

enum { BUF_FIRST = 4096, BUF_KEEP = 64 << 10, TAG_FIELD = 1 };

/* ---- reader ------------------------------------------------------------------------------------------------------------------------ */

void td_frame_reader_init(struct td_frame_reader *r, size_t cap)
{
	*r = (struct td_frame_reader){.cap = cap};
}

void td_frame_reader_finish(struct td_frame_reader *r)
{
	free(r->buf);
	*r = (struct td_frame_reader){0};
}

static size_t payload_length(const struct td_frame_reader *r)
{
	return (size_t)r->buf[0] | (size_t)r->buf[1] << 8 | (size_t)r->buf[2] << 16 | (size_t)r->buf[3] << 24;
}

/* Room for at least one more byte of a frame that will have `want` bytes. */
static int grow(struct td_frame_reader *r, size_t want)
{
	size_t size = r->size ? 2 * r->size : BUF_FIRST;
	uint8_t *buf;

	if (r->used < r->size)
		return 0;
	if (size > want)
		size = want;
	buf = realloc(r->buf, size);
	if (!buf)
		return TD_E_NOMEM;
	r->buf = buf;
	r->size = size;
	return 0;
}

long td_frame_feed(struct td_frame_reader *r, const uint8_t *data, size_t n)
{
	size_t taken = 0;

	for (;;) {
		size_t want = TD_FRAME_HEAD, room;

		if (r->used >= TD_FRAME_HEAD) {
			want += payload_length(r);
			if (want - TD_FRAME_HEAD > r->cap)
				return TD_E_TOO_LARGE;
		}
		if (taken == n || (r->used >= TD_FRAME_HEAD && r->used == want))
			return (long)taken;
		if (grow(r, r->used < TD_FRAME_HEAD ? BUF_FIRST : want) < 0)
			return TD_E_NOMEM;
		room = (want < r->size ? want : r->size) - r->used;
		if (room > n - taken)
			room = n - taken;
		memcpy(r->buf + r->used, data + taken, room);
		r->used += room;
		taken += room;
	}
}

int td_frame_peek(struct td_frame_reader *r, const uint8_t **payload, size_t *n)
{
	if (r->used < TD_FRAME_HEAD || r->used != TD_FRAME_HEAD + payload_length(r))
		return 0;
	*payload = r->buf + TD_FRAME_HEAD;
	*n = r->used - TD_FRAME_HEAD;
	return 1;
}

void td_frame_drop(struct td_frame_reader *r)
{
	r->used = 0;
	if (r->size > BUF_KEEP) { /* an idle connection holds no megabytes */
		free(r->buf);
		r->buf = NULL;
		r->size = 0;
	}
}

/* ---- the walk over the wire form --------------------------------------------------------------------------------------------------- */

static int malformed(struct td_error *err)
{
	return td_error_set(err, TD_E_PROTOCOL, "the message is not well-formed protobuf");
}

/* Length of the varint at p, 0 when there is none within n bytes; *value gets its 64 bits. */
static size_t varint(const uint8_t *p, size_t n, uint64_t *value)
{
	uint64_t v = 0;

	for (size_t i = 0; i < n && i < 10; i++) {
		v |= (uint64_t)(p[i] & 0x7f) << (7 * i);
		if (!(p[i] & 0x80)) {
			*value = v;
			return i + 1;
		}
	}
	return 0;
}

/* Goes through all of it, since what is malformed weighs more than a string that is bad: that one is remembered in *err and returned at the end.
 * Recursion is as deep as the descriptors are: no message of tandem.proto contains itself. */
static int walk(const ProtobufCMessageDescriptor *desc, const uint8_t *p, size_t n, struct td_error *err);

static int check_bytes(const ProtobufCMessageDescriptor *desc, const ProtobufCFieldDescriptor *f, const uint8_t *p, size_t n,
		       struct td_error *err)
{
	if (!f)
		return 0;
	if (f->type == PROTOBUF_C_TYPE_MESSAGE)
		return walk(f->descriptor, p, n, err);
	if (f->type != PROTOBUF_C_TYPE_STRING)
		return 0;
	if (td_utf8_span(p, n) != n)
		return td_error_set(err, TD_E_INVALID, "%s.%s is not valid UTF-8 at byte %zu", desc->short_name, f->name, td_utf8_span(p, n));
	if (memchr(p, 0, n))
		return td_error_set(err, TD_E_INVALID, "%s.%s holds a NUL byte, which text cannot carry; send token ids instead", desc->short_name, f->name);
	return 0;
}

static int walk(const ProtobufCMessageDescriptor *desc, const uint8_t *p, size_t n, struct td_error *err)
{
	int bad = 0;

	while (n > 0) {
		uint64_t key, value = 0;
		size_t k = varint(p, n, &key), skip;
		int rc;
		const ProtobufCFieldDescriptor *f;

		if (!k || key >> 3 == 0 || key >> 3 > 0x1fffffff)
			return malformed(err);
		f = protobuf_c_message_descriptor_get_field(desc, (unsigned)(key >> 3));
		p += k;
		n -= k;
		switch (key & 7) {
		case 0:
			skip = varint(p, n, &value);
			break;
		case 1:
			skip = 8;
			break;
		case 5:
			skip = 4;
			break;
		case 2:
			skip = varint(p, n, &value);
			if (!skip || value > n - skip)
				return malformed(err);
			rc = check_bytes(desc, f, p + skip, (size_t)value, bad ? NULL : err);
			if (rc == TD_E_PROTOCOL)
				return malformed(err);
			bad = bad ? bad : rc;
			skip += (size_t)value;
			break;
		default: /* groups, and what was never defined */
			return malformed(err);
		}
		if (!skip || skip > n)
			return malformed(err);
		p += skip;
		n -= skip;
	}
	return bad;
}

/* ---- unpacking within a budget ----------------------------------------------------------------------------------------------------- */

struct budget {
	size_t used, peak, limit;
	int hit, nomem; /* why an allocation was refused */
};

/* What an allocation costs includes the allocator's own word. Blocks are malloc's, so that free() frees a finished message. */
static size_t cost(void *p)
{
	return malloc_usable_size(p) + sizeof(size_t);
}

static void *budget_alloc(void *ctx, size_t size)
{
	struct budget *b = ctx;
	void *p;

	if (size > b->limit - b->used) {
		b->hit = 1;
		return NULL;
	}
	p = malloc(size);
	if (!p) {
		b->nomem = 1;
		return NULL;
	}
	if (cost(p) > b->limit - b->used) {
		b->hit = 1;
		free(p);
		return NULL;
	}
	b->used += cost(p);
	if (b->used > b->peak)
		b->peak = b->used;
	return p;
}

static void budget_free(void *ctx, void *p)
{
	struct budget *b = ctx;

	if (p)
		b->used -= cost(p);
	free(p);
}

ProtobufCMessage *td__message_unpack(const ProtobufCMessageDescriptor *desc, const uint8_t *payload, size_t n, size_t budget, size_t *peak,
				     struct td_error *err)
{
	struct budget b = {.limit = budget};
	ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &b};
	ProtobufCMessage *msg;

	if (walk(desc, payload, n, err) < 0)
		return NULL;
	msg = protobuf_c_message_unpack(desc, &allocator, n, payload);
	if (peak)
		*peak = b.peak;
	if (!msg && b.nomem)
		td_error_set(err, TD_E_NOMEM, "out of memory for a message of %zu bytes", n);
	else if (!msg && b.hit)
		td_error_set(err, TD_E_TOO_LARGE, "the message of %zu bytes would need more than %zu bytes of memory", n, budget);
	else if (!msg)
		td_error_set(err, TD_E_PROTOCOL, "the message is no %s: a field that must be there is missing or has another type", desc->short_name);
	return msg;
}

Tandem__ClientMessage *td_client_message_unpack(const uint8_t *payload, size_t n, struct td_error *err)
{
	return (Tandem__ClientMessage *)td__message_unpack(&tandem__client_message__descriptor, payload, n, TD__BUDGET_FACTOR * n + TD__BUDGET_BASE, NULL, err);
}

uint64_t td_client_message_tag(const uint8_t *payload, size_t n)
{
	uint64_t key, value, tag = 0;

	while (n > 0) {
		size_t k = varint(payload, n, &key), skip;

		if (!k)
			return 0;
		payload += k;
		n -= k;
		switch (key & 7) {
		case 0:
			skip = varint(payload, n, &value);
			if (skip && key >> 3 == TAG_FIELD)
				tag = value;
			break;
		case 1:
			skip = 8;
			break;
		case 5:
			skip = 4;
			break;
		default:
			skip = varint(payload, n, &value);
			if (skip && value <= n - skip)
				skip += (size_t)value;
			else
				skip = 0;
		}
		if (!skip || skip > n)
			return 0;
		payload += skip;
		n -= skip;
	}
	return tag;
}

Tandem__ServerMessage *td_server_message_unpack(const uint8_t *payload, size_t n, struct td_error *err)
{
	return (Tandem__ServerMessage *)td__message_unpack(&tandem__server_message__descriptor, payload, n, TD__BUDGET_FACTOR * n + TD__BUDGET_BASE, NULL, err);
}

void td_client_message_free(Tandem__ClientMessage *msg)
{
	if (msg)
		tandem__client_message__free_unpacked(msg, NULL);
}

void td_server_message_free(Tandem__ServerMessage *msg)
{
	if (msg)
		tandem__server_message__free_unpacked(msg, NULL);
}

/* ---- packing ----------------------------------------------------------------------------------------------------------------------- */

static uint8_t *pack(const ProtobufCMessage *msg, size_t *n)
{
	size_t body = protobuf_c_message_get_packed_size(msg);
	uint8_t *buf = body <= UINT32_MAX ? malloc(TD_FRAME_HEAD + body) : NULL;

	*n = 0;
	if (!buf)
		return NULL;
	for (int i = 0; i < TD_FRAME_HEAD; i++)
		buf[i] = (uint8_t)(body >> (8 * i));
	protobuf_c_message_pack(msg, buf + TD_FRAME_HEAD);
	*n = TD_FRAME_HEAD + body;
	return buf;
}

uint8_t *td_client_message_pack(const Tandem__ClientMessage *msg, size_t *n)
{
	return pack(&msg->base, n);
}

uint8_t *td_server_message_pack(const Tandem__ServerMessage *msg, size_t *n)
{
	return pack(&msg->base, n);
}
