/* Turns pieces into rows: tokens, marks of trained tokens, truncation, and the compact storage of all rows. */
#include "json_line.h"
#include "lines.h"
#include "tuning-internal.h"

void tuning_rows_free(struct tuning_rows *rows) {
    free(rows->tokens);
    free(rows->trained);
    free(rows->start);
    free(rows->weight);
    free(rows->first);
    *rows = (struct tuning_rows){0};
}

static int out_of_memory(const struct tuning_rows *rows) {
    return status_fail(STATUS_MEMORY, "no memory for more than %lld rows", (long long)rows->count);
}

/* Sets the capacity to `tokens` tokens and `count` rows in all; the arrays may shrink. */
static int resize(struct tuning_rows *rows, int64_t tokens, int64_t count) {
    size_t width = rows->has_int32 ? sizeof(int32_t) : sizeof(uint16_t);
    if (tokens != rows->token_capacity) {
        void *moved = realloc(rows->tokens, (size_t)(tokens + 1) * width);
        if (moved)
            rows->tokens = moved;
        uint64_t *bits = realloc(rows->trained, (size_t)(tokens / 64 + 1) * sizeof *bits);
        if (bits)
            rows->trained = bits;
        if (!moved || !bits)
            return out_of_memory(rows);
        rows->token_capacity = tokens;
    }
    if (count != rows->row_capacity || !rows->start) {
        int64_t *start = realloc(rows->start, (size_t)(count + 1) * sizeof *start);
        if (start)
            rows->start = start;
        float *weight = realloc(rows->weight, (size_t)(count + 1) * sizeof *weight);
        if (weight)
            rows->weight = weight;
        int32_t *first = rows->has_pairs ? realloc(rows->first, (size_t)(count + 1) * sizeof *first) : NULL;
        if (first)
            rows->first = first;
        if (!start || !weight || (rows->has_pairs && !first))
            return out_of_memory(rows);
        rows->row_capacity = count;
    }
    return STATUS_OK;
}

void tuning_rows_finish(struct tuning_rows *rows) {
    if (rows->count > 0 && resize(rows, rows->start[rows->count], rows->count))
        return; /* an array that did not shrink is still usable */
}

size_t tuning_rows_bytes(const struct tuning_rows *rows) {
    size_t tokens = (size_t)rows->token_capacity, width = rows->has_int32 ? sizeof(int32_t) : sizeof(uint16_t);
    return rows->start ? (tokens + 1) * width + (tokens / 64 + 1) * sizeof *rows->trained +
                             ((size_t)rows->row_capacity + 1) * (sizeof *rows->start + sizeof *rows->weight +
                                                                 (rows->has_pairs ? sizeof *rows->first : 0))
                       : 0;
}

/* A text of a row under construction. */
struct draft {
    struct token_buffer ids;
    struct strbuf trained; /* [ids.count] 0 or 1 */
    int text;              /* its number in the row */
    size_t first, last;    /* the tokens to keep are [first, last) */
    bool is_cut;
};

static int encode(const struct tuning_row *row, const struct tuning_options *options, int32_t eos,
                  struct tokenizer_encoder *encoder, struct draft *draft) {
    struct strbuf *trained = &draft->trained;
    const struct chat_pieces *pieces = &row->pieces[draft->text];
    draft->ids.count = 0;
    strbuf_clear(trained);
    int status = row->is_chat ? STATUS_OK : tokenizer_encode(encoder, "", 0, TOKENIZER_ADD_BEGIN, &draft->ids);
    for (size_t i = 0; i < draft->ids.count; i++)
        strbuf_add_char(trained, 0);
    THEN(status, chat_pieces_encode(pieces, encoder, eos, &draft->ids, trained));
    THEN(status, strbuf_status(trained));
    for (size_t i = 0; i < draft->ids.count && !status; i++) {
        bool is_answer = trained->data[i] & CHAT_ANSWER, is_silent = trained->data[i] & CHAT_SILENT;
        trained->data[i] = is_answer || (options->is_whole_text && !is_silent);
        if (draft->ids.ids[i] >= options->vocab_size)
            status = status_fail(STATUS_INVALID, "token %d is outside the model's vocabulary of %lld",
                                 (int)draft->ids.ids[i], (long long)options->vocab_size);
    }
    if (!status && options->form != TUNING_ANSWERS && trained->length)
        trained->data[0] = 0; /* the reference model may have no virtual token that predicts it */
    return status;
}

static bool is_end(const struct tuning_options *options, int32_t eos, int32_t id) {
    bool is_one = id == eos;
    for (int i = 0; i < options->end_count; i++)
        is_one |= id == options->ends[i];
    return is_one;
}

/* Drops the end-of-text that was added to an answer that ends with a token at which generators stop. White space may
 * follow that one, as in texts that a template made. */
static void drop_second_end(struct draft *draft, const struct tuning_options *options, int32_t eos) {
    const struct token_buffer *ids = &draft->ids;
    size_t length = 0, i = ids->count;
    if (i == 0 || ids->ids[--i] != eos)
        return;
    for (; i > 0 && draft->trained.data[i - 1] && length == 0; i--) {
        const unsigned char *bytes = tokenizer_token_bytes(options->tokenizer, ids->ids[i - 1], &length);
        if (is_end(options, eos, ids->ids[i - 1])) {
            draft->ids.count--;
            return;
        }
        while (length > 0 && memchr(" \t\r\n", bytes[length - 1], 4))
            length--;
    }
}

static size_t after_last_trained(const struct draft *draft, size_t first, size_t last) {
    while (last > first && !draft->trained.data[last - 1])
        last--;
    return last;
}

/* Finds the tokens to keep; none when no label would count. */
static void cut(struct draft *draft, const struct tuning_options *options, bool has_answer) {
    size_t most = (size_t)(options->seq_length - options->virtual_tokens - options->first_position);
    draft->first = 0;
    draft->last = has_answer ? after_last_trained(draft, 0, draft->ids.count) : 0;
    draft->is_cut = draft->last > most;
    if (draft->is_cut && options->truncation == TUNING_TRUNCATE_LEFT)
        draft->first = draft->last - most;
    else if (draft->is_cut)
        draft->last = after_last_trained(draft, 0, most);
    if (draft->last - draft->first == 1 && options->virtual_tokens == 0)
        draft->last = draft->first; /* nothing predicts the first token */
}

/* Adds the texts of a row, one after the other. */
static int add_row(struct tuning_rows *rows, const struct draft *drafts, int texts, float weight) {
    int64_t at = rows->count > 0 ? rows->start[rows->count] : 0, end = at;
    int64_t tokens = rows->token_capacity, count = rows->row_capacity;
    for (int t = 0; t < texts; t++)
        end += (int64_t)(drafts[t].last - drafts[t].first);
    while (tokens < end)
        tokens = tokens + tokens / 2 + 4096;
    if (rows->count == count)
        count = count + count / 2 + 256;
    TRY(resize(rows, tokens, count));
    for (int t = 0; t < texts; t++)
        for (size_t i = drafts[t].first; i < drafts[t].last; i++, at++) {
            uint64_t bit = (uint64_t)1 << at % 64;
            if (rows->has_int32)
                ((int32_t *)rows->tokens)[at] = drafts[t].ids.ids[i];
            else
                ((uint16_t *)rows->tokens)[at] = (uint16_t)drafts[t].ids.ids[i];
            rows->trained[at / 64] =
                (at % 64 ? rows->trained[at / 64] & ~bit : 0) | (drafts[t].trained.data[i] ? bit : 0);
        }
    rows->start[0] = 0;
    rows->weight[rows->count] = weight;
    if (rows->first)
        rows->first[rows->count] = (int32_t)(drafts[0].last - drafts[0].first);
    rows->start[++rows->count] = end;
    return STATUS_OK;
}

/* A row without a trained piece has no answer, whatever else is trained. */
static bool has_answer(const struct chat_pieces *pieces) {
    for (size_t i = 0; i < pieces->count; i++)
        if (pieces->items[i].flags & CHAT_ANSWER)
            return true;
    return false;
}

static int keep_row(struct tuning_rows *rows, const struct tuning_options *options, const struct tuning_row *row,
                    struct draft *drafts, int64_t line, struct tuning_file_count *count) {
    bool is_empty = false, is_cut = false;
    int texts = tuning_texts(options->form);
    count->rows++;
    for (int t = 0; t < texts; t++) {
        cut(&drafts[t], options, has_answer(&row->pieces[t]) && row->weight != 0);
        is_empty |= drafts[t].first == drafts[t].last;
        is_cut |= drafts[t].is_cut;
    }
    if (is_empty) {
        if (count->empty < TUNING_LINES_SHOWN)
            count->empty_lines[count->empty] = line;
        count->empty++;
        count->weightless += row->weight == 0;
        return STATUS_OK;
    }
    if (rows->count == INT32_MAX)
        return status_fail(STATUS_UNSUPPORTED, "more than %d rows", INT32_MAX);
    count->truncated += is_cut;
    count->endless += row->pieces[0].endless > 0;
    for (int t = 0; t < texts; t++) {
        count->tokens += (int64_t)(drafts[t].last - drafts[t].first);
        for (size_t i = drafts[t].first + (options->virtual_tokens == 0); i < drafts[t].last; i++)
            count->trained += drafts[t].trained.data[i];
    }
    return add_row(rows, drafts, texts, row->weight);
}

int tuning_rows_read(struct tuning_rows *rows, const struct tuning_options *options, struct tuning_format *format,
                     struct tokenizer_encoder *encoder, struct tuning_file_count *count) {
    struct lines *lines = NULL;
    int64_t bytes;
    struct tuning_row row = {0};
    struct draft drafts[2] = {{.text = 0}, {.text = 1}};
    bool is_end = false;
    int status = corpus_input_bytes(count->path, &bytes);
    THEN(status, lines_open(count->path, TUNING_LINE_BYTES, &lines));
    while (!status && !(status = lines_next_row(lines, &is_end)) && !is_end) {
        const struct strbuf *line = lines_text(lines);
        count->has_elements = lines_are_elements(lines);
        status = tuning_parse_line(line->data, line->length, format, &row);
        for (int t = 0; t < tuning_texts(options->form) && !status; t++) {
            status = encode(&row, options, format->eos, encoder, &drafts[t]);
            if (!status && !row.is_chat)
                drop_second_end(&drafts[t], options, format->eos);
        }
        THEN(status, keep_row(rows, options, &row, drafts, lines_number(lines), count));
        if (status)
            lines_wrap(lines, status);
    }
    lines_close(lines);
    tuning_row_free(&row);
    for (int t = 0; t < 2; t++) {
        token_buffer_free(&drafts[t].ids);
        strbuf_free(&drafts[t].trained);
    }
    return status;
}
