/* Any bytes as a body of multipart/form-data: however they are split, the parts are the same. The first byte says how
 * to split. */
#include "http/multipart.h"

#include "base/base.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int begin(void *context, const char *name, const char *filename) {
    strbuf_format(context, "[%s|%s]", name, filename);
    return STATUS_OK;
}

static int add(void *context, const void *bytes, size_t length) {
    strbuf_add(context, bytes, length);
    return STATUS_OK;
}

static int read_body(const uint8_t *data, size_t size, size_t each, struct strbuf *out) {
    const struct multipart_sink sink = {.begin = begin, .add = add, .context = out};
    struct multipart multipart;
    int status = multipart_open(&multipart, "multipart/form-data; boundary=b", &sink);
    for (size_t at = 0; at < size && !status; at += each)
        status = multipart_read(&multipart, data + at, size - at < each ? size - at : each);
    THEN(status, multipart_end(&multipart));
    multipart_close(&multipart);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strbuf whole = STRBUF_INIT, split = STRBUF_INIT;
    if (size < 2 || size > 4000) /* a longer header may be refused in one way of splitting only */
        return 0;
    int first = read_body(data + 1, size - 1, size, &whole),
        second = read_body(data + 1, size - 1, 1 + data[0] % 9, &split);
    if (first != second || (!first && (whole.length != split.length ||
                                       memcmp(strbuf_text(&whole), strbuf_text(&split), whole.length) != 0))) {
        fprintf(stderr, "multipart_fuzz: pieces change what is read\n");
        abort();
    }
    strbuf_free(&whole);
    strbuf_free(&split);
    return 0;
}
