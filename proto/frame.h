/*
 * frame.h: length-prefixed frames, for both ends of a connection, and bounded unpacking.
 *
 * A frame is a 4-byte little-endian length and that many bytes. The cap is checked as soon as the length is known, before memory is taken
 * and before protobuf sees a byte. Unpacking has a budget of memory per message, so a small frame cannot grow into a large structure.
 */
#ifndef TD_FRAME_H
#define TD_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "engine/error.h"
#include "tandem.pb-c.h"

enum { TD_FRAME_MAX = 8 << 20, TD_FRAME_HEAD = 4 };

/* Incremental reader: feed bytes as they come, take frames out. Owns its buffer, which never exceeds cap + 4. */
struct td_frame_reader {
	uint8_t *buf;
	size_t used, size, cap;
};
void td_frame_reader_init(struct td_frame_reader *r, size_t cap);
void td_frame_reader_finish(struct td_frame_reader *r);
/* Appends up to n bytes, returns how many were taken (fewer only when a whole frame waits to be taken), or TD_E_TOO_LARGE, TD_E_NOMEM. */
long td_frame_feed(struct td_frame_reader *r, const uint8_t *data, size_t n);
/* 1 and the payload of the first whole frame (valid until td_frame_drop), 0 if there is none yet. */
int td_frame_peek(struct td_frame_reader *r, const uint8_t **payload, size_t *n);
void td_frame_drop(struct td_frame_reader *r);

/* Unpack with a memory budget (16 * n + 64 KiB); also checks that every string is valid UTF-8. NULL + err on a bad message: TD_E_PROTOCOL when it is no
 * protobuf of ours; TD_E_INVALID (a string), TD_E_TOO_LARGE, TD_E_NOMEM when only its content cannot be had, and td_client_message_tag tells whose it is.
 * Free with td_client_message_free / td_server_message_free. */
Tandem__ClientMessage *td_client_message_unpack(const uint8_t *payload, size_t n, struct td_error *err);
uint64_t td_client_message_tag(const uint8_t *payload, size_t n); /* of a payload that was refused for its content; 0: none */
Tandem__ServerMessage *td_server_message_unpack(const uint8_t *payload, size_t n, struct td_error *err);
void td_client_message_free(Tandem__ClientMessage *msg);
void td_server_message_free(Tandem__ServerMessage *msg);
/* Packs head and body into one malloc'd buffer; NULL when out of memory. */
uint8_t *td_client_message_pack(const Tandem__ClientMessage *msg, size_t *n);
uint8_t *td_server_message_pack(const Tandem__ServerMessage *msg, size_t *n);

#endif
