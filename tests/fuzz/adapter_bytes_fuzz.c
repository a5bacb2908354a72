/* Any bytes as an adapter's block: it is refused in one line, or what opens can be read to its end and has a digest.
 * The bytes are also cut in two, as the configuration and the tensors of a block that is well made. */
#include "peft/peft.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "adapter_bytes_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static void open_block(const void *data, size_t size) {
    char digest[PEFT_SHA256_BYTES];
    struct peft_bytes bytes = {.directory = "block", .data = (void *)(uintptr_t)data, .length = size};
    struct peft_files *files;
    struct peft_notes notes;
    uint64_t number;
    status_fail(STATUS_OK, "%s", "");
    if (peft_files_open_bytes(&bytes, 1, &files)) {
        check(!files && *status_text() && !strchr(status_text(), '\n'), "refused without one line that says why");
        return;
    }
    check(!ckpt_digest(peft_files_tensors(files, 0), &number), "open, but not to be read");
    if (peft_files_notes(files, 0, &notes))
        check(*status_text() && !strchr(status_text(), '\n'), "notes refused without one line");
    check(!peft_bytes_digest(&bytes, digest) && strlen(digest) == 64, "no digest");
    peft_files_close(files);
}

static void add_file(struct strbuf *block, const char *name, const void *bytes, uint64_t length) {
    char start[56] = "";
    memcpy(start, name, strlen(name));
    strbuf_add(block, start, sizeof start);
    strbuf_add(block, &length, sizeof length);
    strbuf_add(block, bytes, length);
}

/* Finds the end of a configuration: after the first "}" that is followed by the length of a header. */
static size_t find_cut(const uint8_t *data, size_t size) {
    for (size_t i = 0; i + 4 < size; i++)
        if (data[i] == '}' && data[i + 3] == 0)
            return i + 1;
    return size / 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strbuf block = STRBUF_INIT;
    size_t cut = find_cut(data, size);
    log_quiet(true); /* unknown keys */
    open_block(data, size);
    add_file(&block, "adapter_config.json", data, cut);
    add_file(&block, "adapter_model.safetensors", data + cut, size - cut);
    check(!strbuf_status(&block), "no memory");
    open_block(block.data, block.length);
    strbuf_free(&block);
    return 0;
}
