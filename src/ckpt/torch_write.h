/* Pickles and archives of fixed form, as torch.save and torch.distributed.checkpoint read them: protocol 2 without a
 * memo, zips of stored records. */
#pragma once

#include "safetensors.h"

/* Opcodes that have no operand. */
#define PICKLE_BEGIN       "\x80\x02"
#define PICKLE_STOP        "."
#define PICKLE_MARK        "("
#define PICKLE_EMPTY_TUPLE ")"
#define PICKLE_EMPTY_LIST  "]"
#define PICKLE_EMPTY_DICT  "}"
#define PICKLE_END_TUPLE   "t"
#define PICKLE_ONE_TUPLE   "\x85"
#define PICKLE_END_LIST    "e"
#define PICKLE_END_DICT    "u"
#define PICKLE_NEW         "\x81"
#define PICKLE_CALL        "R"
#define PICKLE_SET_STATE   "b"
#define PICKLE_WRITE_NONE  "N"
#define PICKLE_WRITE_TRUE  "\x88"
#define PICKLE_WRITE_FALSE "\x89"
#define PICKLE_FROM_ID     "Q"

/* Append a class or function, a text, an integer, a fraction, a tuple of integers. */
void pickle_add_global(struct strbuf *out, const char *module, const char *name);
void pickle_add_text(struct strbuf *out, const char *text);
void pickle_add_integer(struct strbuf *out, int64_t value);
void pickle_add_number(struct strbuf *out, double value);
void pickle_add_sizes(struct strbuf *out, const int64_t *sizes, int count);
/* Appends torch's element type; the type has one. */
void pickle_add_type(struct strbuf *out, const char *type);

enum { ARCHIVE_MAX_RECORDS = 4 };

/* An archive of records under one directory. The last record may be large: its bytes come from a function. */
struct archive_record {
    const char *name;  /* with the directory */
    const void *bytes; /* NULL: of the function */
    int64_t length;
};
struct archive {
    struct archive_record records[ARCHIVE_MAX_RECORDS];
    int count;
    /* Reads bytes [first, first + length) of the record that has no bytes. */
    int (*read)(void *context, int64_t first, int64_t length, void *out);
    void *context;
};
/* Writes an archive at byte `start` of a file, with zip64 where it is needed; sets its length. STATUS_IO,
 * STATUS_MEMORY. */
int archive_write(const struct archive *archive, const char *path, int descriptor, int64_t start, int64_t *length);

/* megatron_arguments.c: writes common.pt with the arguments of exchange_write_dcp. STATUS_INVALID, STATUS_IO,
 * STATUS_MEMORY. */
int megatron_arguments_write(const char *directory, const char *arguments);
