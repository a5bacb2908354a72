/* Adapters as bytes: what opens from them is what opens from the files, whatever becomes of these; and no bytes are
 * believed. */
#include "peft/peft.h"

#include "base/base.h"
#include "support/test.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN TEST_DATA "/peft/golden"
enum { NAME = 56, FRAME = NAME + 8, LIMIT = 1 << 24 };

static void add_file(struct strbuf *block, const char *name, const void *bytes, size_t length) {
    char start[FRAME] = "";
    uint64_t number = length;
    memcpy(start, name, strlen(name));
    memcpy(start + NAME, &number, sizeof number);
    strbuf_add(block, start, sizeof start);
    strbuf_add(block, bytes, length);
}

static void read_file(const char *directory, const char *name, struct strbuf *text) {
    char path[PATH_MAX];
    test_ok(file_join(path, sizeof path, directory, name));
    strbuf_clear(text);
    test_ok(file_read(path, LIMIT, text));
}

static void write_file(const char *directory, const char *name, const void *bytes, size_t length) {
    char path[PATH_MAX];
    test_ok(file_join(path, sizeof path, directory, name));
    test_ok(file_write_atomic(path, bytes, length));
}

static int open_block(const struct strbuf *block, struct peft_files **files) {
    struct peft_bytes bytes = {.directory = "somewhere", .data = block->data, .length = block->length};
    return peft_files_open_bytes(&bytes, 1, files);
}

static void refuse(const struct strbuf *block, const char *part) {
    struct peft_files *files;
    test_fails(open_block(block, &files), STATUS_INVALID, part);
    assert_null(files);
    assert_null(strchr(status_text(), '\n'));
    assert_non_null(strstr(status_text(), "somewhere"));
}

/* A copy of a golden adapter's directory, in which tests may write. */
static char *copy_adapter(const char *name) {
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    char *directory = test_directory(), from[600], to[600];
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, GOLDEN "/%s/%s", name, names[i]);
        snprintf(to, sizeof to, "%s/%s", directory, names[i]);
        test_ok(file_copy(from, to));
    }
    return directory;
}

static char *config_text(const struct peft_files *files, int index) {
    const struct model_config base = {.num_layers = 3, .hidden_size = 24};
    char *text;
    test_ok(peft_write_config(&peft_files_configs(files)[index], &base, "base", &text));
    return text;
}

static void check_same(const struct peft_files *one, int i, const struct peft_files *other, int j) {
    uint64_t digests[2];
    char *texts[2] = {config_text(one, i), config_text(other, j)};
    assert_string_equal(texts[0], texts[1]);
    test_ok(ckpt_digest(peft_files_tensors(one, i), &digests[0]));
    test_ok(ckpt_digest(peft_files_tensors(other, j), &digests[1]));
    assert_int_equal(ckpt_elements(peft_files_tensors(one, i)), ckpt_elements(peft_files_tensors(other, j)));
    assert_true(digests[0] == digests[1]);
    assert_string_equal(peft_files_directory(one, i), peft_files_directory(other, j));
    free(texts[0]);
    free(texts[1]);
}

static void bytes_open_as_their_files(void **state) {
    static const char *const names[] = {GOLDEN "/lora_patterns", GOLDEN "/adapter_par_bn", GOLDEN "/prompt",
                                        GOLDEN "/ptuning_lstm",  GOLDEN "/prefix",         GOLDEN "/ia3"};
    enum { COUNT = sizeof names / sizeof *names };
    struct peft_bytes bytes[COUNT];
    struct peft_files *from_files, *from_bytes;
    (void)state;
    for (int i = 0; i < COUNT; i++)
        test_ok(peft_bytes_read(names[i], LIMIT, &bytes[i]));
    test_ok(peft_files_open(names, COUNT, false, &from_files));
    test_ok(peft_files_open_bytes(bytes, COUNT, &from_bytes));
    assert_int_equal(peft_files_count(from_bytes), COUNT);
    for (int i = 0; i < COUNT; i++)
        check_same(from_files, i, from_bytes, i);
    peft_files_close(from_files);
    peft_files_close(from_bytes);
    for (int i = 0; i < COUNT; i++)
        peft_bytes_free(&bytes[i]);
}

static void bytes_outlive_their_files(void **state) {
    struct peft_bytes bytes;
    struct peft_files *files;
    struct peft_notes notes;
    char *directory = copy_adapter("lora"), path[600];
    (void)state;
    write_file(directory, "cambium_adapter.json", "{\"base_digest\":\"0123\",\"chat_template\":\"chatml\"}", 47);
    test_ok(peft_bytes_read(directory, LIMIT, &bytes));
    snprintf(path, sizeof path, "%s", directory);
    test_ok(file_remove_tree(path));
    test_ok(peft_files_open_bytes(&bytes, 1, &files));
    assert_int_equal(peft_files_configs(files)[0].r, 4);
    assert_string_equal(peft_files_directory(files, 0), directory);
    test_ok(peft_files_notes(files, 0, &notes));
    assert_string_equal(notes.base_digest, "0123");
    assert_string_equal(notes.chat_template, "chatml");
    peft_files_close(files);
    peft_bytes_free(&bytes);
    free(directory);
}

/* By the notes, by the template's text, by neither; and what is none. */
static void the_chat_template_is_that_of_the_files(void **state) {
    static const struct {
        const char *notes, *jinja, *name; /* name NULL: there is no template */
        int status;
        const char *expected, *tokenizer; /* tokenizer_config.json */
    } cases[] = {
        {NULL, NULL, NULL, 0, NULL, NULL},
        {"{\"chat_template\":\"\"}", NULL, NULL, 0, NULL, NULL},
        {"{\"chat_template\":\"alpaca\"}", "{{ 'x' }}", "alpaca", 0, NULL, NULL},
        {"{}", "{% for m in messages %}{{ m }}{% endfor %}", "", 0, NULL, NULL},
        {"{}", "{% for m in messages %}\n{{ m }", NULL, STATUS_INVALID, "chat_template.jinja: line 2: ", NULL},
        {"{\"chat_template\":\"llama\"}", NULL, NULL, STATUS_UNSUPPORTED, "none of chatml, alpaca, plain", NULL},
        {NULL, NULL, "", 0, NULL, "{\"model_max_length\": 1e30, \"chat_template\": \"{{ 'x' }}\"}"},
        {NULL, NULL, "", 0, NULL, "{\"chat_template\": [{\"name\": \"default\", \"template\": \"{{ 'x' }}\"}]}"},
        {NULL, NULL, "", 0, NULL, "{\"chat_template\": {\"tool_use\": \"{{ 'y' }}\", \"default\": \"{{ 'x' }}\"}}"},
        {NULL, NULL, NULL, 0, NULL, "{\"chat_template\": null}"},
        {NULL, NULL, NULL, 0, NULL, "{\"eos_token\": \"a\"}"},
        {NULL, "{{ 'x' }}", "", 0, NULL, "{\"chat_template\": \"{{\"}"},
        {"{\"chat_template\":\"alpaca\"}", NULL, "alpaca", 0, NULL, "{\"chat_template\": \"{{ 'x' }}\"}"},
        {NULL, NULL, NULL, STATUS_INVALID,
         "tokenizer_config.json: chat_template: line 1: ", "{\"chat_template\": \"{{\"}"},
        {NULL, NULL, NULL, STATUS_INVALID, "tokenizer_config.json: line 1 column ", "{"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *directory = copy_adapter("lora");
        struct peft_bytes bytes;
        struct peft_files *files;
        struct chat_template *found;
        if (cases[i].notes)
            write_file(directory, "cambium_adapter.json", cases[i].notes, strlen(cases[i].notes));
        if (cases[i].jinja)
            write_file(directory, "chat_template.jinja", cases[i].jinja, strlen(cases[i].jinja));
        if (cases[i].tokenizer)
            write_file(directory, "tokenizer_config.json", cases[i].tokenizer, strlen(cases[i].tokenizer));
        test_ok(peft_bytes_read(directory, LIMIT, &bytes));
        test_ok(peft_files_open_bytes(&bytes, 1, &files));
        for (int k = 0; k < 2; k++) {
            int status = k ? peft_bytes_chat_template(&bytes, &found) : peft_chat_template(directory, &found);
            if (cases[i].status)
                test_fails(status, cases[i].status, cases[i].expected);
            else
                test_ok(status);
            assert_int_equal(found != NULL, cases[i].name != NULL);
            if (found)
                assert_string_equal(chat_template_name(found), cases[i].name);
            chat_template_close(found);
        }
        peft_files_close(files);
        peft_bytes_free(&bytes);
        free(directory);
    }
}

/* ---- the digest ---- */

static void the_digest_is_sha256_of_names_lengths_and_contents(void **state) {
    /* by Python: hashlib.sha256 of name.ljust(56, b"\0") + struct.pack("<Q", len(b)) + b, for both files */
    static const char expected[] = "5b197c814ef71d166332ae1364ca2f8310c069801dcfca4d4668ce6a877cc113";
    struct peft_bytes bytes;
    char digest[PEFT_SHA256_BYTES];
    (void)state;
    test_ok(peft_bytes_read(GOLDEN "/lora", LIMIT, &bytes));
    test_ok(peft_bytes_digest(&bytes, digest));
    assert_string_equal(digest, expected);
    peft_bytes_free(&bytes);
}

static void one_bit_anywhere_is_another_digest(void **state) {
    struct peft_bytes bytes;
    char digest[PEFT_SHA256_BYTES], other[PEFT_SHA256_BYTES];
    (void)state;
    test_ok(peft_bytes_read(GOLDEN "/prompt", LIMIT, &bytes));
    test_ok(peft_bytes_digest(&bytes, digest));
    for (size_t i = 0; i < bytes.length; i++) {
        ((unsigned char *)bytes.data)[i] ^= 1;
        test_ok(peft_bytes_digest(&bytes, other));
        assert_string_not_equal(digest, other);
        ((unsigned char *)bytes.data)[i] ^= 1;
    }
    test_ok(peft_bytes_digest(&bytes, other));
    assert_string_equal(digest, other);
    peft_bytes_free(&bytes);
}

/* ---- damaged bytes ---- */

static void cut_bytes_are_refused(void **state) {
    struct peft_bytes bytes;
    (void)state;
    test_ok(peft_bytes_read(GOLDEN "/prompt", LIMIT, &bytes));
    for (size_t length = 0; length < bytes.length; length++) {
        char *exact = malloc(length + !length); /* lets a sanitizer see a read past its end */
        assert_non_null(exact);
        memcpy(exact, bytes.data, length);
        struct strbuf cut = {.data = exact, .length = length};
        refuse(&cut, length ? "" : "no configuration");
        free(exact);
    }
    peft_bytes_free(&bytes);
}

/* Every byte of names, lengths and of the header of the tensors becomes every other: one line, or what opens is read to
 * its end. */
static void changed_bytes_are_refused_or_read(void **state) {
    struct peft_bytes bytes;
    (void)state;
    test_ok(peft_bytes_read(GOLDEN "/prompt", LIMIT, &bytes));
    unsigned char *data = bytes.data;
    size_t end = bytes.length - 480; /* 5 x 24 values of fp32 */
    int refused = 0, opened = 0;
    log_quiet(true); /* unknown keys */
    for (size_t i = 0; i < end; i++)
        for (int to = 0; to < 256; to += test_is_long() ? 1 : 17) {
            struct peft_files *files;
            unsigned char from = data[i];
            data[i] = (unsigned char)to;
            int status = peft_files_open_bytes(&bytes, 1, &files);
            if (status) {
                refused++;
                assert_true(*status_text() && !strchr(status_text(), '\n') && !files);
            } else {
                uint64_t digest;
                opened++;
                test_ok(ckpt_digest(peft_files_tensors(files, 0), &digest));
            }
            peft_files_close(files);
            data[i] = from;
        }
    log_quiet(false);
    assert_true(refused > 1000 && opened > 100);
    peft_bytes_free(&bytes);
}

#define TENSOR(shape, offsets)                                                                                         \
    "{\"prompt_embeddings\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

/* A block of prompt's configuration and a file of this header and 480 bytes of data. */
static void make_block(struct strbuf *block, const char *header, uint64_t length) {
    static const char data[480];
    struct strbuf config = STRBUF_INIT, tensors = STRBUF_INIT;
    read_file(GOLDEN "/prompt", "adapter_config.json", &config);
    strbuf_add(&tensors, &length, sizeof length);
    strbuf_add_text(&tensors, header);
    strbuf_add(&tensors, data, sizeof data);
    strbuf_clear(block);
    add_file(block, "adapter_config.json", config.data, config.length);
    add_file(block, "adapter_model.safetensors", tensors.data, tensors.length);
    test_ok(strbuf_status(block));
    strbuf_free(&config);
    strbuf_free(&tensors);
}

static void tensors_in_bytes_are_checked_as_in_files(void **state) {
    static const struct {
        const char *header, *expected;
        int64_t more; /* on the header's length */
    } cases[] = {
        {TENSOR("[5,24]", "[0,484]"), "outside the 480 bytes of data", 0},
        {TENSOR("[5,24]", "[4,484]"), "outside the 480 bytes of data", 0},
        {TENSOR("[5,24]", "[-4,476]"), "outside the 480 bytes of data", 0},
        {TENSOR("[5,25]", "[0,480]"), "its dtype and shape make 500", 0},
        {TENSOR("[4,24]", "[0,384]"), "96 bytes after the last tensor", 0},
        {TENSOR("[4,24]", "[96,480]"), "after the end of the data before it", 0},
        {TENSOR("[4611686018427387904,4]", "[0,480]"), "more elements than fit", 0},
        {TENSOR("[5,24]", "[0,480]"), "damaged JSON", -1},
        {TENSOR("[5,24]", "[0,480]"), "damaged JSON", 1},
        {TENSOR("[5,24]", "[0,480]"), "but the file ends 555 bytes after it", 481},
        {TENSOR("[5,24]", "[0,480]"), "more than the 100000000 allowed", INT64_MAX / 2},
    };
    struct strbuf block = STRBUF_INIT;
    struct peft_files *files;
    (void)state;
    make_block(&block, TENSOR("[5,24]", "[0,480]"), strlen(TENSOR("[5,24]", "[0,480]")));
    test_ok(open_block(&block, &files));
    peft_files_close(files);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_block(&block, cases[i].header, strlen(cases[i].header) + (uint64_t)cases[i].more);
        refuse(&block, cases[i].expected);
    }
    strbuf_free(&block);
}

static void only_files_of_an_adapter_in_their_order_are_a_block(void **state) {
    static const struct {
        const char *names[4], *expected;
    } cases[] = {
        {{"adapter_model.safetensors"}, "a file before the configuration"},
        {{"adapter_config.json"}, "no file of tensors"},
        {{"adapter_config.json", "cambium_adapter.json"}, "no file of tensors"},
        {{"adapter_config.json", "adapter_config.json"}, "before another, or once"},
        {{"adapter_config.json", "adapter_model.safetensors", "adapter.safetensors"}, "a second file of tensors"},
        {{"adapter_config.json", "cambium_adapter.json", "adapter_model.safetensors"}, "before another, or once"},
        {{"adapter_config.json", "config.json"}, "not the name of an adapter's file"},
        {{"adapter_config.json", "../adapter_model.safetensors"}, "not the name of an adapter's file"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf block = STRBUF_INIT;
        for (int k = 0; k < 4 && cases[i].names[k]; k++)
            add_file(&block, cases[i].names[k], "{}", 2);
        refuse(&block, cases[i].expected);
        strbuf_free(&block);
    }
}

/* ---- limits ---- */

/* A configuration of `length` bytes, padded with spaces. */
static void pad_config(const char *name, size_t length, struct strbuf *text) {
    read_file(name, "adapter_config.json", text);
    while (text->length < length)
        strbuf_add_char(text, ' ');
    test_ok(strbuf_status(text));
}

static void a_configuration_has_at_most_a_mebibyte(void **state) {
    enum { MEBIBYTE = 1 << 20 };
    struct strbuf text = STRBUF_INIT, block = STRBUF_INIT, tensors = STRBUF_INIT;
    struct peft_bytes bytes;
    struct peft_files *files;
    char *directory = copy_adapter("lora");
    const char *directories[] = {directory};
    (void)state;
    read_file(GOLDEN "/lora", "adapter_model.safetensors", &tensors);
    for (int more = 0; more < 2; more++) {
        pad_config(GOLDEN "/lora", MEBIBYTE + (size_t)more, &text);
        write_file(directory, "adapter_config.json", text.data, text.length);
        strbuf_clear(&block);
        add_file(&block, "adapter_config.json", text.data, text.length);
        add_file(&block, "adapter_model.safetensors", tensors.data, tensors.length);
        int expected = more ? STATUS_INVALID : STATUS_OK;
        assert_int_equal(open_block(&block, &files), expected);
        peft_files_close(files);
        assert_int_equal(peft_files_open(directories, 1, false, &files), expected);
        peft_files_close(files);
        assert_int_equal(peft_bytes_read(directory, LIMIT, &bytes), expected);
        if (more)
            test_fails(STATUS_INVALID, STATUS_INVALID, "1048577 bytes, more than the 1048576 allowed");
        peft_bytes_free(&bytes);
    }
    strbuf_free(&text);
    strbuf_free(&block);
    strbuf_free(&tensors);
    free(directory);
}

static void what_is_no_adapter_is_refused_in_one_line(void **state) {
    struct peft_bytes bytes;
    char *empty = test_directory(), *directory = copy_adapter("lora"), path[600];
    (void)state;
    test_fails(peft_bytes_read("/no/where", LIMIT, &bytes), STATUS_NOT_FOUND, "/no/where");
    test_fails(peft_bytes_read(empty, LIMIT, &bytes), STATUS_NOT_FOUND, "holds no adapter");
    assert_true(!bytes.data && !bytes.directory && !bytes.length);
    test_ok(peft_bytes_read(directory, LIMIT, &bytes));
    size_t length = bytes.length;
    peft_bytes_free(&bytes);
    test_fails(peft_bytes_read(directory, length - 1, &bytes), STATUS_INVALID, "an adapter of more than the");
    test_fails(peft_bytes_read(directory, 10, &bytes), STATUS_INVALID, "an adapter of more than the 10 bytes");
    test_ok(peft_bytes_read(directory, length, &bytes));
    peft_bytes_free(&bytes);
    write_file(directory, "adapter_config.json", "{}\0{}", 5);
    struct peft_files *files;
    const char *directories[] = {directory};
    test_ok(peft_bytes_read(directory, LIMIT, &bytes));
    test_fails(peft_files_open_bytes(&bytes, 1, &files), STATUS_INVALID, "byte 2 is 0");
    test_fails(peft_files_open(directories, 1, false, &files), STATUS_INVALID, "byte 2 is 0");
    peft_bytes_free(&bytes);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", directory);
    assert_int_equal(unlink(path), 0);
    test_fails(peft_bytes_read(directory, LIMIT, &bytes), STATUS_NOT_FOUND, "adapter_model.safetensors");
    write_file(directory, "adapter_model.bin", "", 0);
    test_fails(peft_bytes_read(directory, LIMIT, &bytes), STATUS_UNSUPPORTED, "a pickle");
    assert_int_equal(mkfifo(path, 0600), 0);
    test_fails(peft_bytes_read(directory, LIMIT, &bytes), STATUS_INVALID, "is not a regular file");
    free(empty);
    free(directory);
}

/* ---- files that change ---- */

struct swapping {
    const char *one, *other;
    atomic_bool is_ending;
};

static void *swap(void *context) {
    struct swapping *s = context;
    while (!atomic_load(&s->is_ending)) {
        assert_int_equal(renameat2(-1, s->one, -1, s->other, RENAME_EXCHANGE), 0);
        usleep(100);
    }
    return NULL;
}

static void a_directory_that_is_replaced_is_read_as_one_or_the_other(void **state) {
    char *one = copy_adapter("lora"), *other = copy_adapter("rslora");
    struct swapping swapping = {.one = one, .other = other};
    struct peft_bytes bytes[2];
    pthread_t thread;
    int seen[2] = {0};
    (void)state;
    test_ok(peft_bytes_read(one, LIMIT, &bytes[0]));
    test_ok(peft_bytes_read(other, LIMIT, &bytes[1]));
    assert_int_equal(pthread_create(&thread, NULL, swap, &swapping), 0);
    for (int i = 0; i < 2000 || !seen[0] || !seen[1]; i++) { /* a busy machine may run one thread alone for long */
        struct peft_bytes now;
        int status = peft_bytes_read(one, LIMIT, &now);
        if (status) {
            test_fails(status, STATUS_INVALID, "its files change while they are read");
            continue;
        }
        int which = now.length == bytes[0].length ? 0 : 1;
        assert_int_equal(now.length, bytes[which].length);
        assert_memory_equal(now.data, bytes[which].data, now.length);
        seen[which]++;
        peft_bytes_free(&now);
    }
    atomic_store(&swapping.is_ending, true);
    pthread_join(thread, NULL);
    peft_bytes_free(&bytes[0]);
    peft_bytes_free(&bytes[1]);
    free(one);
    free(other);
}

static void a_stack_is_found_as_its_adapters(void **state) {
    char *root = test_directory(), **found;
    const char *directories[] = {root, GOLDEN "/ia3"};
    size_t count;
    (void)state;
    test_fails(peft_find(directories, 1, &found, &count), STATUS_NOT_FOUND, "holds no adapter");
    assert_true(!found && !count);
    for (int i = 0; i < 2; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", root, i ? "prompt" : "lora");
        test_ok(file_make_directories(path));
        write_file(path, "adapter_config.json", "{}", 2);
    }
    test_ok(peft_find(directories, 2, &found, &count));
    assert_int_equal(count, 3);
    assert_non_null(strstr(found[0], "/lora"));
    assert_non_null(strstr(found[1], "/prompt"));
    assert_string_equal(found[2], GOLDEN "/ia3");
    file_list_free(found, count);
    free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_open_as_their_files),
        cmocka_unit_test(bytes_outlive_their_files),
        cmocka_unit_test(the_chat_template_is_that_of_the_files),
        cmocka_unit_test(the_digest_is_sha256_of_names_lengths_and_contents),
        cmocka_unit_test(one_bit_anywhere_is_another_digest),
        cmocka_unit_test(cut_bytes_are_refused),
        cmocka_unit_test(changed_bytes_are_refused_or_read),
        cmocka_unit_test(tensors_in_bytes_are_checked_as_in_files),
        cmocka_unit_test(only_files_of_an_adapter_in_their_order_are_a_block),
        cmocka_unit_test(a_configuration_has_at_most_a_mebibyte),
        cmocka_unit_test(what_is_no_adapter_is_refused_in_one_line),
        cmocka_unit_test(a_directory_that_is_replaced_is_read_as_one_or_the_other),
        cmocka_unit_test(a_stack_is_found_as_its_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
