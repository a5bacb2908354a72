/* Runs a fuzz target without a fuzzing engine: every seed unchanged, then mutations of the seeds from a fixed seed. It
 * takes a given number of inputs, five times as many in the long form. A target defines LLVMFuzzerTestOneInput, so
 * libFuzzer and AFL++ can drive it too. It finds crashes and sanitizer reports; the input that was running is kept in
 * ./fuzz-failure.bin. */
#include "support/test.h"

#include "base/base.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SEEDS = 4096, LARGEST_INPUT = 1 << 20 };
static struct strbuf seeds[MAX_SEEDS];
static size_t seed_count;
static uint8_t current[LARGEST_INPUT];
static size_t current_size;
static uint64_t draws;

static uint32_t draw(uint32_t below) {
    struct philox r = philox(20261121, (uint32_t)draws, (uint32_t)(draws >> 32), 0, (uint32_t)RNG_TEST << 24);
    draws++;
    return (uint32_t)(((uint64_t)r.word[0] * below) >> 32);
}

static void keep_failure(int signal_number) {
    FILE *f = fopen("fuzz-failure.bin", "wb");
    if (f) {
        fwrite(current, 1, current_size, f);
        fclose(f);
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void mutate(void) {
    static const int64_t interesting[] = {0,     1,     -1,         127,        128,       255,      256,
                                          65535, 65536, 0x7fffffff, 0xffffffff, INT64_MAX, INT64_MIN};
    for (uint32_t edits = 1 + draw(8); edits > 0; edits--) {
        size_t at = current_size ? draw((uint32_t)current_size) : 0;
        switch (draw(8)) {
        case 0: /* flip a bit */
            if (current_size)
                current[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1: /* any byte */
            if (current_size)
                current[at] = (uint8_t)draw(256);
            break;
        case 2: { /* a number that breaks arithmetic */
            int64_t value = interesting[draw(sizeof interesting / sizeof *interesting)];
            size_t width = (size_t)1 << draw(4);
            if (at + width <= current_size)
                memcpy(current + at, &value, width);
            break;
        }
        case 3: /* cut the tail */
            current_size = at;
            break;
        case 4: { /* remove a piece */
            size_t n = 1 + draw(16);
            if (at + n <= current_size) {
                memmove(current + at, current + at + n, current_size - at - n);
                current_size -= n;
            }
            break;
        }
        case 5: { /* repeat a piece */
            size_t n = 1 + draw(64);
            if (at + n <= current_size && current_size + n <= LARGEST_INPUT) {
                memmove(current + at + n, current + at, current_size - at);
                current_size += n;
            }
            break;
        }
        case 6: { /* a digit or a mark of a text format */
            static const char marks[] = "0123456789-+.eE\"{}[]:,\\ \n\t#&*!|>%@'";
            if (current_size)
                current[at] = (uint8_t)marks[draw(sizeof marks - 1)];
            break;
        }
        default: { /* the head of one seed, the tail of another */
            const struct strbuf *other = &seeds[draw((uint32_t)seed_count)];
            size_t from = other->length ? draw((uint32_t)other->length) : 0, n = other->length - from;
            if (at + n <= LARGEST_INPUT && n > 0) {
                memcpy(current + at, other->data + from, n);
                current_size = at + n;
            }
        }
        }
    }
}

/* The input is copied to a block of exactly its size, so that a sanitizer sees a read past its end. */
static void run(void) {
    uint8_t *copy = malloc(current_size ? current_size : 1);
    if (!copy)
        exit(1);
    memcpy(copy, current, current_size);
    LLVMFuzzerTestOneInput(copy, current_size);
    free(copy);
}

int main(int argc, char **argv) {
    uint64_t inputs = 100000;
    const char *corpus = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--inputs") && i + 1 < argc)
            inputs = strtoull(argv[++i], NULL, 10);
        else
            corpus = argv[i];
    }
    char **names;
    size_t count;
    if (!corpus || file_list(corpus, &names, &count)) {
        fprintf(stderr, "usage: %s [--inputs N] CORPUS_DIRECTORY\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < count && seed_count < MAX_SEEDS; i++) {
        char path[4096];
        if (!file_join(path, sizeof path, corpus, names[i]) && !file_read(path, LARGEST_INPUT, &seeds[seed_count]))
            seed_count++;
    }
    file_list_free(names, count);
    if (seed_count == 0) {
        fprintf(stderr, "%s: no seeds\n", corpus);
        return 2;
    }
    signal(SIGABRT, keep_failure);
    signal(SIGSEGV, keep_failure);
    for (size_t i = 0; i < seed_count; i++) {
        current_size = seeds[i].length;
        memcpy(current, strbuf_text(&seeds[i]), current_size);
        run();
    }
    inputs *= test_is_long() ? 5 : 1;
    for (uint64_t i = 0; i < inputs; i++) {
        const struct strbuf *seed = &seeds[draw((uint32_t)seed_count)];
        current_size = seed->length;
        memcpy(current, strbuf_text(seed), current_size);
        mutate();
        run();
    }
    printf("%zu seeds and %llu mutations, no failure\n", seed_count, (unsigned long long)inputs);
    for (size_t i = 0; i < seed_count; i++)
        strbuf_free(&seeds[i]);
    return 0;
}
