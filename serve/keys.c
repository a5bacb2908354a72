/* Key files: read and checked whole before they take effect. */
#include "keys.h"

#include "base/base.h"

#include <math.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <strings.h>

enum { FILE_LIMIT = 8 << 20 };

struct key {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    size_t name; /* index of keys->names */
    uint64_t client;
    double weight;
    int32_t least_priority;
    bool may_tune;
    int64_t tuning_jobs, tuning_bytes; /* -1: unlimited */
};

/* Names stay when the file no longer has them, because running requests point to them. */
struct keys {
    char *path;
    struct key *list; /* [count] */
    size_t count;
    char **names; /* [name_count] */
    size_t name_count;
};

struct word {
    const char *at;
    size_t length;
};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* Splits a line before its comment into words. Returns a number above `most` when there are more. */
static size_t split(const char *line, size_t length, struct word *words, size_t most) {
    size_t count = 0;
    for (size_t i = 0; i < length;) {
        size_t begin = i;
        if (is_blank(line[i])) {
            i++;
            continue;
        }
        if (line[i] == '#')
            break;
        while (i < length && !is_blank(line[i]))
            i++;
        if (count == most)
            return most + 1;
        words[count++] = (struct word){.at = line + begin, .length = i - begin};
    }
    return count;
}

static bool name_is_valid(struct word name) {
    for (size_t i = 0; i < name.length; i++) {
        char c = name.at[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!is_letter && !memchr("._@-", c, 4))
            return false;
    }
    return name.length <= KEYS_NAME_BYTES;
}

static bool key_is_valid(struct word key) {
    for (size_t i = 0; i < key.length; i++)
        if (key.at[i] <= ' ' || key.at[i] > '~')
            return false;
    return key.length <= KEYS_KEY_BYTES;
}

static bool read_weight(struct word word, double *weight) {
    char text[32], *end;
    if (word.length >= sizeof text)
        return false;
    memcpy(text, word.at, word.length);
    text[word.length] = '\0';
    if (strspn(text, "0123456789.eE+-") != word.length) /* strtod also accepts "nan" and "0x1" */
        return false;
    *weight = strtod(text, &end);
    return !*end && isfinite(*weight) && *weight >= 1e-3 && *weight <= 1e3;
}

/* Finds a name in keys->names, and adds a new one. */
static int find_name(struct keys *keys, struct word name, size_t *place) {
    for (*place = 0; *place < keys->name_count; ++*place)
        if (strlen(keys->names[*place]) == name.length && !memcmp(keys->names[*place], name.at, name.length))
            return STATUS_OK;
    char **names = realloc(keys->names, (keys->name_count + 1) * sizeof *names);
    if (names)
        keys->names = names;
    char *copy = strndup(name.at, name.length);
    if (!names || !copy) {
        free(copy);
        return status_fail(STATUS_MEMORY, "out of memory for the names of keys");
    }
    keys->names[keys->name_count++] = copy;
    return STATUS_OK;
}

/* Copies the rest of a word after its first `before` bytes; false when it does not fit. */
static bool copy_rest(struct word word, size_t before, char *text, size_t bytes) {
    size_t length = word.length - before;
    if (!length || length >= bytes)
        return false;
    memcpy(text, word.at + before, length);
    text[length] = '\0';
    return true;
}

static bool read_integer(const char *text, int64_t low, int64_t high, int64_t *value) {
    char *end;
    if (strspn(text, "0123456789-") != strlen(text)) /* strtoll skips blanks and accepts a plus */
        return false;
    *value = strtoll(text, &end, 10);
    return !*end && end != text && *value >= low && *value <= high;
}

/* Reads bytes, as 100 or 20G. */
static bool read_size(char *text, int64_t *value) {
    static const char units[] = "KMGT";
    size_t length = strlen(text);
    const char *unit = strchr(units, text[length - 1]);
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (unit)
        text[length - 1] = '\0';
    if (!read_integer(text, 0, (int64_t)1 << 50 >> shift, value))
        return false;
    *value <<= shift;
    return true;
}

/* Meanings of the words after a key. A word that begins with none of the others is a weight. */
enum right { RIGHT_PRIORITY, RIGHT_TUNE, RIGHT_JOBS, RIGHT_BYTES, RIGHT_WEIGHT, RIGHTS };
static const struct {
    const char *prefix, *many, *expected;
} rights[RIGHTS] = {
    {"priority>=", "two lowest priorities", "expected priority>=N with an integer N of 32 bits"},
    {"tune", "two times 'tune'", ""},
    {"tuning_jobs=", "two of tuning_jobs", "expected tuning_jobs=N with an integer N from 0"},
    {"tuning_bytes=", "two of tuning_bytes", "expected tuning_bytes=SIZE, such as 20G"},
    {"", "two weights", "a weight is a number from 0.001 to 1000"},
};

static enum right find_right(struct word word) {
    enum right right = RIGHT_PRIORITY;
    for (; right < RIGHT_WEIGHT; right++) {
        size_t length = strlen(rights[right].prefix);
        if (word.length >= length && !memcmp(word.at, rights[right].prefix, length) &&
            (right != RIGHT_TUNE || word.length == length))
            break;
    }
    return right;
}

static bool read_right(enum right right, struct word word, struct key *key) {
    char text[24];
    int64_t value;
    if (right == RIGHT_TUNE)
        return key->may_tune = true;
    if (right == RIGHT_WEIGHT)
        return read_weight(word, &key->weight);
    if (!copy_rest(word, strlen(rights[right].prefix), text, sizeof text))
        return false;
    if (right == RIGHT_JOBS)
        return read_integer(text, 0, INT32_MAX, &key->tuning_jobs);
    if (right == RIGHT_BYTES)
        return read_size(text, &key->tuning_bytes);
    if (!read_integer(text, INT32_MIN, INT32_MAX, &value))
        return false;
    key->least_priority = (int32_t)value;
    return true;
}

/* Reads the words after the key, each at most once. */
static int read_rights(const struct word *words, size_t count, struct key *key) {
    bool has[RIGHTS] = {false};
    for (size_t i = 0; i < count; i++) {
        enum right right = find_right(words[i]);
        if (has[right])
            return status_fail(STATUS_INVALID, "%s", rights[right].many);
        has[right] = true;
        if (!read_right(right, words[i], key))
            return status_fail(STATUS_INVALID, "%s", rights[right].expected);
    }
    if ((has[RIGHT_JOBS] || has[RIGHT_BYTES]) && !has[RIGHT_TUNE])
        return status_fail(STATUS_INVALID, "limits of tuning do nothing without the word 'tune'");
    return STATUS_OK;
}

static int read_line(struct keys *keys, const char *line, size_t length, struct key *list, size_t *count) {
    struct word words[2 + RIGHTS];
    unsigned char digest[SHA256_DIGEST_LENGTH];
    struct key key = {.weight = 1, .least_priority = INT32_MIN, .tuning_jobs = -1, .tuning_bytes = -1};
    size_t n = split(line, length, words, 2 + RIGHTS);
    if (n == 0)
        return STATUS_OK;
    if (n == 1 || n > 2 + RIGHTS)
        return status_fail(STATUS_INVALID,
                           "expected 'name key [weight] [priority>=N] [tune] [tuning_jobs=N] [tuning_bytes=SIZE]'");
    if (!name_is_valid(words[0]))
        return status_fail(STATUS_INVALID, "a name has 1 to %d letters, digits and characters of ._@-",
                           KEYS_NAME_BYTES);
    if (!key_is_valid(words[1]))
        return status_fail(STATUS_INVALID, "a key has 1 to %d printable ASCII characters", KEYS_KEY_BYTES);
    TRY(read_rights(words + 2, n - 2, &key));
    if (*count == KEYS_MAX)
        return status_fail(STATUS_INVALID, "a file has at most %d keys", KEYS_MAX);
    if (!SHA256((const unsigned char *)words[1].at, words[1].length, key.digest) ||
        !SHA256((const unsigned char *)words[0].at, words[0].length, digest))
        return status_fail(STATUS_MEMORY, "out of memory for the digest of a key");
    for (size_t i = 0; i < *count; i++)
        if (!memcmp(list[i].digest, key.digest, sizeof key.digest))
            return status_fail(STATUS_INVALID, "the same key as that of '%s' above", keys->names[list[i].name]);
    memcpy(&key.client, digest, sizeof key.client);
    key.client |= !key.client;
    int status = find_name(keys, words[0], &key.name);
    if (!status)
        list[(*count)++] = key;
    return status;
}

static int read_lines(struct keys *keys, const struct strbuf *text, struct key *list, size_t *count) {
    const char *at = strbuf_text(text), *end = at + text->length;
    for (int64_t number = 1; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        int status = read_line(keys, at, length, list, count);
        if (status)
            return status_wrap(status, "%s: line %lld", keys->path, (long long)number);
        at += length + 1;
    }
    return *count ? STATUS_OK : status_fail(STATUS_INVALID, "%s: there is no key in it", keys->path);
}

int keys_reload(struct keys *keys) {
    struct strbuf text = STRBUF_INIT;
    size_t count = 0;
    struct key *list = malloc(KEYS_MAX * sizeof *list);
    int status = list ? file_read(keys->path, FILE_LIMIT, &text)
                      : status_fail(STATUS_MEMORY, "%s: out of memory for keys", keys->path);
    THEN(status, read_lines(keys, &text, list, &count));
    if (text.data)
        OPENSSL_cleanse(text.data, text.length);
    strbuf_free(&text);
    struct key *fitting = status ? NULL : realloc(list, count * sizeof *list);
    if (status) {
        free(list);
        return status;
    }
    free(keys->list);
    keys->list = fitting ? fitting : list;
    keys->count = count;
    return STATUS_OK;
}

int keys_open(const char *path, struct keys **keys) {
    struct keys *opened = calloc(1, sizeof *opened);
    int status = STATUS_OK;
    *keys = NULL;
    if (opened)
        opened->path = strdup(path);
    if (!opened || !opened->path)
        status = status_fail(STATUS_MEMORY, "%s: out of memory for keys", path);
    THEN(status, keys_reload(opened));
    if (status) {
        keys_close(opened);
        return status;
    }
    *keys = opened;
    return STATUS_OK;
}

void keys_close(struct keys *keys) {
    if (!keys)
        return;
    for (size_t i = 0; i < keys->name_count; i++)
        free(keys->names[i]);
    free(keys->names);
    free(keys->list);
    free(keys->path);
    free(keys);
}

size_t keys_count(const struct keys *keys) {
    return keys->count;
}

bool keys_find(const struct keys *keys, const char *authorization, struct key_holder *holder) {
    static const char scheme[] = "Bearer ";
    unsigned char digest[SHA256_DIGEST_LENGTH];
    size_t found = 0;
    bool is_found = false;
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1))
        return false;
    const char *key = authorization + sizeof scheme - 1;
    key += strspn(key, " \t");
    size_t length = strlen(key);
    while (length > 0 && is_blank(key[length - 1]))
        length--;
    if (!length || !SHA256((const unsigned char *)key, length, digest))
        return false;
    for (size_t i = 0; i < keys->count; i++) { /* compares all of them, whatever matches */
        size_t is_same = CRYPTO_memcmp(digest, keys->list[i].digest, sizeof digest) == 0;
        found |= i & (size_t) - (ptrdiff_t)is_same;
        is_found |= is_same;
    }
    if (!is_found)
        return false;
    const struct key *entry = &keys->list[found];
    *holder = (struct key_holder){.client = entry->client,
                                  .name = keys->names[entry->name],
                                  .weight = entry->weight,
                                  .least_priority = entry->least_priority,
                                  .may_tune = entry->may_tune,
                                  .tuning_jobs = entry->tuning_jobs,
                                  .tuning_bytes = entry->tuning_bytes};
    return true;
}
