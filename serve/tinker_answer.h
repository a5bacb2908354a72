/* Answers of Tinker's API that are protobuf (proto/tinker.proto). */
#pragma once

#include "tinker_data.h"

#include "tinker.pb-c.h"

/* Appends a message to `out`. */
void tinker_pack(const ProtobufCMessage *message, struct strbuf *out);
