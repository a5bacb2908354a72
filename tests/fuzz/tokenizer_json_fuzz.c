/* Any bytes as tokenizer.json or, after "#version", as merges.txt next to a valid vocab.json. They are refused with a
 * text, or give a tokenizer that restores every byte and opens again after it was saved. */
#include "base/base.h"
#include "text/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char directory[] = "/tmp/cambium-fuzz-XXXXXX";
static bool is_started;
static unsigned opened;

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "tokenizer_json_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static void remove_directory(void) {
    file_remove_tree(directory);
}

/* DIRECTORY/json for tokenizer.json, DIRECTORY/merges with the vocab.json of a good tokenizer, DIRECTORY/saved. */
static void start(void) {
    char path[512];
    struct tokenizer *small = NULL;
    check(mkdtemp(directory), "no directory");
    atexit(remove_directory);
    is_started = true;
    snprintf(path, sizeof path, "%s/json", directory);
    check(!file_make_directories(path), "no directory");
    snprintf(path, sizeof path, "%s/merges", directory);
    check(!tokenizer_open(TEST_DATA "/text/golden/small", &small) && !tokenizer_save(small, path), "no tokenizer");
    tokenizer_close(small);
    snprintf(path, sizeof path, "%s/merges/tokenizer.json", directory);
    check(unlink(path) == 0, "no tokenizer.json");
}

/* Whether what the file asks for may lose bytes of a text. */
static bool may_lose(const uint8_t *data, size_t size) {
    static const char *const parts[] = {"strip", "Removed", "Metaspace", "Replace", "\\u"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (memmem(data, size, parts[i], strlen(parts[i])))
            return true;
    const uint8_t *end = data + size, *unk = memmem(data, size, "unk_token\"", 10);
    for (unk = unk ? unk + 10 : end; unk < end && strchr(": \t\r\n", *unk);)
        unk++;
    return unk < end && *unk == '"';
}

/* `is_lossy`: there may be tokens that take white space along, a step that removes what it finds, or bytes and
 * characters that have no token. */
static void check_tokenizer(const struct tokenizer *tokenizer, bool is_lossy) {
    uint8_t bytes[512];
    struct tokenizer_encoder *encoder = NULL;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    struct strbuf text = STRBUF_INIT;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = i < 256 ? (uint8_t)i : (uint8_t) "the cat's <|endoftext|>"[i % 23];
    for (int byte = 0; byte < 256; byte++) /* one that has no token is lost */
        is_lossy |= tokenizer_find(tokenizer, &(uint8_t){(uint8_t)byte}, 1) < 0;
    check(!tokenizer_encoder_new(tokenizer, &encoder), "no encoder");
    int status = tokenizer_encode(encoder, bytes, sizeof bytes, TOKENIZER_ALLOW_SPECIAL, &ids);
    is_lossy |= status != STATUS_OK;
    check(!status || strstr(status_text(), "the tokenizer's pattern"), "not encoded");
    check(!tokenizer_decode(tokenizer, ids.ids, ids.count, &text), "not decoded");
    size_t spaces = text.length - sizeof bytes; /* of add_prefix_space, one a section */
    check(is_lossy || (text.length >= sizeof bytes && spaces <= ids.count), "other bytes come back");
    check(is_lossy || spaces > 0 || !memcmp(text.data, bytes, sizeof bytes), "other bytes come back");
    ids.count = 0;
    check(!tokenizer_encode(encoder, "", 0, TOKENIZER_ADD_SPECIAL, &ids), "not encoded");
    strbuf_clear(&text);
    check(!tokenizer_decode(tokenizer, ids.ids, ids.count, &text), "not decoded");
    tokenizer_encoder_free(encoder);
    token_buffer_free(&ids);
    strbuf_free(&text);
}

/* Saving waits for the disk, so only some are saved. */
static void check_saved(const struct tokenizer *tokenizer) {
    char path[512];
    struct tokenizer *again = NULL;
    snprintf(path, sizeof path, "%s/saved", directory);
    check(!tokenizer_save(tokenizer, path), "not saved");
    check(!tokenizer_open(path, &again), "what was saved does not open");
    check(tokenizer_vocab_size(again) == tokenizer_vocab_size(tokenizer), "another size");
    check(tokenizer_eos_id(again) == tokenizer_eos_id(tokenizer), "another end");
    tokenizer_close(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!is_started)
        start();
    bool is_merges = size >= 8 && !memcmp(data, "#version", 8);
    char folder[256], path[512];
    snprintf(folder, sizeof folder, "%s/%s", directory, is_merges ? "merges" : "json");
    snprintf(path, sizeof path, "%s/%s", folder, is_merges ? "merges.txt" : "tokenizer.json");
    FILE *file = fopen(path, "wb");
    check(file && fwrite(data, 1, size, file) == size && fclose(file) == 0, "no file");
    struct tokenizer *tokenizer = NULL;
    status_fail(STATUS_OK, "%s", "");
    if (tokenizer_open(folder, &tokenizer)) {
        check(!tokenizer && *status_text() && !strchr(status_text(), '\n'), "refused without one line that says why");
        return 0;
    }
    check_tokenizer(tokenizer, may_lose(data, size));
    if (opened++ % 256 == 0)
        check_saved(tokenizer);
    tokenizer_close(tokenizer);
    return 0;
}
