/*
 * frame_internal.h: unpacking with an explicit budget, for frame.c and its test.
 */
#ifndef TD_FRAME_INTERNAL_H
#define TD_FRAME_INTERNAL_H

#include "proto/frame.h"

enum { TD__BUDGET_FACTOR = 16, TD__BUDGET_BASE = 64 << 10 };

/* NULL + err; free with protobuf_c_message_free_unpacked(msg, NULL). `peak`, when given, receives the most bytes that were taken. */
ProtobufCMessage *td__message_unpack(const ProtobufCMessageDescriptor *desc, const uint8_t *payload, size_t n, size_t budget, size_t *peak,
				     struct td_error *err);

#endif
