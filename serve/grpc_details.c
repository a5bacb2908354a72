/* The details of errors, in the form that stock clients of gRPC know (proto/google/rpc). */
#include "grpc_details.h"

#include "openai/error.h"

#include "base/strbuf.h"
#include "base/utf8.h"

#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"

#include <ctype.h>
#include <string.h>

/* ErrorInfo comes first, because programs decide by it. BadRequest comes last, because it is the longest and repeats
 * the message. */
enum { MAX_DETAILS = 3 };

struct details {
    Google__Protobuf__Any any[MAX_DETAILS], *list[MAX_DETAILS];
    struct strbuf packed[MAX_DETAILS];
    size_t count;
};

/* ---- bytes ---- */

static void add_packed(struct strbuf *out, const ProtobufCMessage *message) {
    size_t length = protobuf_c_message_get_packed_size(message);
    if (strbuf_reserve(out, length))
        return;
    out->length += protobuf_c_message_pack(message, (uint8_t *)out->data + out->length);
}

/* Without padding, as metadata is sent. */
static size_t base64_length(size_t length) {
    return (length * 4 + 2) / 3;
}

static void add_base64(struct strbuf *out, const struct strbuf *bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *at = (const unsigned char *)strbuf_text(bytes);
    unsigned group = 0;
    int bits = 0;
    for (size_t i = 0; i < bytes->length; i++) {
        group = (group << 8 | at[i]) & 0xffff; /* at most four bits are pending */
        for (bits += 8; bits >= 6; bits -= 6)
            strbuf_add_char(out, digits[group >> (bits - 6) & 63]);
    }
    if (bits)
        strbuf_add_char(out, digits[group << (6 - bits) & 63]);
}

/* ---- details ---- */

static void add_detail(struct details *details, const char *type_url, const ProtobufCMessage *message) {
    size_t i = details->count++;
    add_packed(&details->packed[i], message);
    google__protobuf__any__init(&details->any[i]);
    details->any[i].type_url = (char *)type_url;
    details->any[i].value =
        (ProtobufCBinaryData){.data = (uint8_t *)details->packed[i].data, .len = details->packed[i].length};
    details->list[i] = &details->any[i];
}

/* The `code` of HTTP's body, spelled like gRPC's reasons. */
static void add_error_info(struct details *details, const struct error_row *row) {
    Google__Rpc__ErrorInfo info = GOOGLE__RPC__ERROR_INFO__INIT;
    Google__Rpc__ErrorInfo__MetadataEntry type = GOOGLE__RPC__ERROR_INFO__METADATA_ENTRY__INIT, *entries[] = {&type};
    char reason[64];
    size_t length = 0;
    if (!row->code)
        return;
    for (; row->code[length] && length + 1 < sizeof reason; length++)
        reason[length] = (char)toupper((unsigned char)row->code[length]);
    reason[length] = 0;
    type.key = (char *)"type";
    type.value = (char *)row->type;
    info.reason = reason;
    info.domain = (char *)"cambium";
    info.n_metadata = 1;
    info.metadata = entries;
    add_detail(details, "type.googleapis.com/google.rpc.ErrorInfo", &info.base);
}

static void add_retry_info(struct details *details, int milliseconds) {
    Google__Rpc__RetryInfo info = GOOGLE__RPC__RETRY_INFO__INIT;
    Google__Protobuf__Duration delay = GOOGLE__PROTOBUF__DURATION__INIT;
    if (milliseconds <= 0)
        return;
    delay.seconds = milliseconds / 1000;
    delay.nanos = milliseconds % 1000 * 1000000;
    info.retry_delay = &delay;
    add_detail(details, "type.googleapis.com/google.rpc.RetryInfo", &info.base);
}

/* Names and texts may repeat a client's bytes, cut at any place. */
static void add_bad_request(struct details *details, const struct error *error) {
    Google__Rpc__BadRequest bad = GOOGLE__RPC__BAD_REQUEST__INIT;
    Google__Rpc__BadRequest__FieldViolation violation = GOOGLE__RPC__BAD_REQUEST__FIELD_VIOLATION__INIT,
                                            *violations[] = {&violation};
    struct strbuf field = STRBUF_INIT, description = STRBUF_INIT;
    if (!*error->param)
        return;
    utf8_add_repaired(&field, error->param, strlen(error->param));
    utf8_add_repaired(&description, error->text, strlen(error->text));
    violation.field = (char *)strbuf_text(&field);
    violation.description = (char *)strbuf_text(&description);
    bad.n_field_violations = 1;
    bad.field_violations = violations;
    if (!field.failed && !description.failed)
        add_detail(details, "type.googleapis.com/google.rpc.BadRequest", &bad.base);
    strbuf_free(&field);
    strbuf_free(&description);
}

void grpc_add_details(struct strbuf *out, const struct error *error, const char *message, size_t room) {
    const struct error_row *row = error_row(error->which);
    Google__Rpc__Status status = GOOGLE__RPC__STATUS__INIT;
    struct details details = {.count = 0};
    struct strbuf bytes = STRBUF_INIT;
    add_error_info(&details, row);
    add_retry_info(&details, error->retry_after_ms);
    add_bad_request(&details, error);
    status.code = row->grpc;
    status.message = (char *)message;
    status.details = details.list;
    for (status.n_details = 0; status.n_details < details.count; status.n_details++)
        if (details.packed[status.n_details].failed)
            break; /* as much as memory allows */
    while (status.n_details && base64_length(protobuf_c_message_get_packed_size(&status.base)) > room)
        status.n_details--;
    if (base64_length(protobuf_c_message_get_packed_size(&status.base)) <= room) {
        add_packed(&bytes, &status.base);
        if (!bytes.failed)
            add_base64(out, &bytes);
    }
    strbuf_free(&bytes);
    for (size_t i = 0; i < details.count; i++)
        strbuf_free(&details.packed[i]);
}
