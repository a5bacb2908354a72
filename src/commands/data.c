/* cambium data show: prints a data path's index maps or one sample, or a row of a tuning file, as the trainer sees
 * them. */
#include "commands.h"
#include "launch.h"
#include "model_arguments.h"

#include "base/base.h"
#include "config/config.h"
#include "data/data.h"
#include "data/tuning.h"
#include "model/family.h"
#include "openai/json_out.h"
#include "pretrained/pretrained.h"
#include "text/text.h"

struct show_options {
    struct config_list data_path;
    int64_t seq_length, num_samples, seed, sample, eod_id;
    const char *split, *tokenizer, *data_cache_path;
    int which; /* enum data_split */
    bool eod_mask_loss, reset_position_ids, reset_attention_mask;
    /* options for rows */
    const char *data, *chat_template;
    double template_timeout;
    int64_t row;
    int answers, special_tokens;
};

#define AT(field) offsetof(struct show_options, field)
static const char *const split_names[] = {"train", "valid", "test", NULL};
static const struct config_row rows[] = {
    ROW_PATHS("data-path", AT(data_path), "P|W1 P1 W2 P2...",
              "prefix of a dataset (P.bin and P.idx), or a blend of weights and prefixes"),
    ROW_PATH("data", AT(data), "FILE.jsonl",
             "instead of a dataset, a file of rows for cambium finetune, which reads them as shown"),
    ROW_INT("seq-length", AT(seq_length), NULL, 1, 2147483646, "tokens of a sample; with --data the maximum for a row"),
    ROW_PATH("tokenizer", AT(tokenizer), "DIR",
             "tokenizer directory: adds the sample's text, and has the end-of-document token"),
    ROW_INT("sample", AT(sample), NULL, 0, 1e12,
            "show the tokens, labels, loss mask and positions of sample I instead of the indexes", .metavar = "I"),
    ROW_INT("row", AT(row), "0", 0, 1e12, "number of the row of --data, among those with an answer, from 0",
            .metavar = "I"),
    ROW_INT("num-samples", AT(num_samples), "0", 0, 1e12,
            "number of samples (train_iters * global_batch_size of a run); 0: one epoch"),
    ROW_TEXT("split", AT(split), "A,B,C",
             "shares of the documents for training, validation and test; every document when not given"),
    ROW_INT("seed", AT(seed), "1234", 0, 4294967295.0, "seed of the order of the samples"),
    CHAT_TEMPLATE_ROW("chat-template", AT(chat_template), "messages of --data", "as the tokenizer's own template"),
    ROW_CHOICE("answers", AT(answers), "all", chat_answers_names, "answers of messages to train on, as data.answers"),
    SPECIAL_TOKENS_ROW("special-tokens", AT(special_tokens), "rows of --data without a template"),
    ROW_CHOICE("which", AT(which), "train", split_names, "split to show"),
    ROW_INT("eod-id", AT(eod_id), "-1", -1, 2147483647, "id of the end-of-document token, without a tokenizer"),
    ROW_BOOL("eod-mask-loss", AT(eod_mask_loss), "false", "no loss on end-of-document tokens"),
    ROW_BOOL("reset-position-ids", AT(reset_position_ids), "false", "positions start again after each document's end"),
    ROW_BOOL("reset-attention-mask", AT(reset_attention_mask), "false",
             "no attention across a document's end: adds segment_starts to a sample"),
    TEMPLATE_TIMEOUT_ROW("template-timeout", AT(template_timeout)),
    ROW_PATH("data-cache-path", AT(data_cache_path), "DIR",
             "directory of index maps; by default cache/GPTDataset_indices next to each prefix"),
};
static const struct config_command show_command = {
    .name = "data show",
    .synopsis = "cambium data show --data-path P|W1 P1 W2 P2... --seq-length S [--num-samples K] [--seed R] [--split "
                "A,B,C] [--sample I] [--tokenizer DIR]\n"
                "       cambium data show --data FILE.jsonl --tokenizer DIR [--row I] [--chat-template NAME|FILE] "
                "[--answers all|last] [--special-tokens parse|text]",
    .description =
        "Prints one JSON object with what the trainer will see of a dataset: document_index, sample_index "
        "(pairs of a position in the document index and an offset) and shuffle_index. A blend also has "
        "dataset_index and dataset_sample_index, and --sample adds that sample. All of it equals Megatron-LM's "
        "for the same seed. With --data it shows one row that a model is tuned on: tokens, their texts, "
        "which of them are trained, and the text in parts that are trained or not.",
    .examples =
        "  cambium data show --data-path corpus_text_document --seq-length 256 --num-samples 100\n"
        "  cambium data show --data-path corpus_text_document --seq-length 256 --sample 0 --tokenizer tokenizer\n"
        "  cambium data show --data rows.jsonl --tokenizer model --row 3\n"
        "  cambium data show --data-path 0.7 a_text_document 0.3 b_text_document --seq-length 256 --num-samples 100\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof *rows,
};

/* Prints "name":[item,...], where the items come from an expression over i. */
#define PRINT_ARRAY(name, count, format, ...)                                                                          \
    do {                                                                                                               \
        printf("\"%s\": [", name);                                                                                     \
        for (int64_t i = 0; i < (count); i++)                                                                          \
            printf("%s" format, i ? ", " : "", __VA_ARGS__);                                                           \
        printf("]");                                                                                                   \
    } while (0)

static void print_indexes(const struct gpt_dataset *dataset) {
    PRINT_ARRAY("document_index", dataset->document_count, "%d", dataset->document_index[i]);
    printf(", ");
    PRINT_ARRAY("sample_index", dataset->length + 1, "[%u, %d]", dataset->sample_index[i].document,
                dataset->sample_index[i].offset);
    printf(", ");
    PRINT_ARRAY("shuffle_index", dataset->length, "%u", dataset->shuffle_index[i]);
}

static void print_split(const struct gpt_split *split) {
    printf("{");
    if (split->is_blend) {
        PRINT_ARRAY("dataset_index", split->length, "%d", split->dataset_index[i]);
        printf(", ");
        PRINT_ARRAY("dataset_sample_index", split->length, "%lld", (long long)split->dataset_sample_index[i]);
    } else {
        print_indexes(&split->parts[0]);
    }
    printf("}\n");
}

/* Prints bytes as a JSON string. */
static int print_text(const void *bytes, size_t length) {
    struct strbuf out = STRBUF_INIT;
    json_out_string(&out, bytes, length);
    int status = strbuf_status(&out);
    fputs(strbuf_text(&out), stdout);
    strbuf_free(&out);
    return status;
}

static int print_sample(const struct gpt_split *split, const struct show_options *options,
                        const struct tokenizer *tokenizer) {
    struct gpt_batch batch;
    struct strbuf text = STRBUF_INIT;
    int status = gpt_batch_init(&batch, 1, options->seq_length);
    THEN(status, gpt_batch_read(&batch, split, options->sample));
    THEN_IF(status, tokenizer, tokenizer_decode(tokenizer, batch.tokens, (size_t)batch.seq_length, &text));
    THEN_IF(status, tokenizer, strbuf_status(&text));
    if (!status) {
        printf("{\"sample\": %lld, ", (long long)options->sample);
        PRINT_ARRAY("tokens", batch.seq_length, "%d", batch.tokens[i]);
        printf(", ");
        PRINT_ARRAY("labels", batch.seq_length, "%d", batch.labels[i]);
        printf(", ");
        PRINT_ARRAY("loss_mask", batch.seq_length, "%g", (double)batch.loss_mask[i]);
        printf(", ");
        PRINT_ARRAY("position_ids", batch.seq_length, "%d", batch.positions[i]);
        printf(", ");
        PRINT_ARRAY("segment_starts", batch.segments, "%lld", (long long)batch.segment_start[i]);
        if (tokenizer) {
            printf(", \"text\": ");
            status = print_text(strbuf_text(&text), text.length);
        }
        printf("}\n");
    }
    strbuf_free(&text);
    gpt_batch_free(&batch);
    return status;
}

/* ---- rows ---- */

/* Prints the text of tokens [from, to) as one part. */
static int print_part(const struct tokenizer *tokenizer, const int32_t *tokens, int64_t from, int64_t to,
                      bool is_trained) {
    struct strbuf text = STRBUF_INIT;
    int status = tokenizer_decode(tokenizer, tokens + from, (size_t)(to - from), &text);
    THEN(status, strbuf_status(&text));
    if (!status) {
        printf("%s{\"is_trained\": %s, \"text\": ", from ? ", " : "", is_trained ? "true" : "false");
        status = print_text(strbuf_text(&text), text.length);
        printf("}");
    }
    strbuf_free(&text);
    return status;
}

static int print_row(const struct tuning_data *data, const struct tokenizer *tokenizer, int64_t row) {
    int32_t *tokens;
    bool *trained;
    int64_t count;
    int status = tuning_data_row(data, SPLIT_VALID, row, &tokens, &trained, &count);
    TRY(status);
    printf("{\"row\": %lld, \"weight\": %.9g, ", (long long)row, tuning_data_weight(data, SPLIT_VALID, row));
    PRINT_ARRAY("tokens", count, "%d", tokens[i]);
    printf(", ");
    PRINT_ARRAY("trained", count, "%d", trained[i]);
    printf(", \"token_texts\": [");
    for (int64_t i = 0; i < count && !status; i++) {
        size_t length = 0;
        const unsigned char *bytes = tokenizer_token_bytes(tokenizer, tokens[i], &length);
        fputs(i ? ", " : "", stdout);
        status = print_text(bytes, length);
    }
    printf("], \"parts\": [");
    for (int64_t from = 0, to = 0; from < count && !status; from = to) {
        while (to < count && trained[to] == trained[from])
            to++;
        status = print_part(tokenizer, tokens, from, to, trained[from]);
    }
    printf("]}\n");
    free(tokens);
    free(trained);
    return status;
}

static int show_row(const struct show_options *options) {
    const char *items[] = {options->data};
    struct tokenizer_files files;
    struct tokenizer *tokenizer = NULL;
    struct tuning_data *data = NULL;
    struct model_text_ends ends = {0};
    TRY(pretrained_read_tokenizer(options->tokenizer, &files));
    int status = tokenizer_open_files(&files, &tokenizer);
    if (!status && files.is_there[TOKENIZER_GENERATION])
        status = model_read_generation_config(
            strbuf_text(&files.texts[TOKENIZER_GENERATION]), tokenizer_file_names[TOKENIZER_GENERATION],
            &(struct model_config){.vocab_size = tokenizer_vocab_size(tokenizer)}, &ends);
    struct tuning_options rows_options = {
        .valid = {.items = items, .count = 1},
        .tokenizer = tokenizer,
        .tokenizer_files = &files,
        .template = options->chat_template,
        .template_timeout = options->template_timeout,
        .answers = (enum chat_answers)options->answers,
        .special_tokens = (enum special_tokens)options->special_tokens,
        .config_eos = -1,
        .ends = ends.eos,
        .end_count = ends.count,
        .vocab_size = tokenizer ? tokenizer_vocab_size(tokenizer) : 0,
        .seq_length = options->seq_length ? options->seq_length : 1 << 30,
    };
    THEN(status, tuning_data_open(&rows_options, &data));
    if (!status)
        tuning_data_warn(data);
    THEN(status, print_row(data, tokenizer, options->row));
    THEN_IF(status, (fflush(stdout) || ferror(stdout)), status_fail_errno("cannot write standard output"));
    tuning_data_close(data);
    tokenizer_close(tokenizer);
    tokenizer_files_free(&files);
    return status;
}

static int check(const struct show_options *options, const struct config *config) {
    static const char *const of_rows[] = {"row", "chat-template", "template-timeout", "answers", "special-tokens"};
    if ((options->data != NULL) == (options->data_path.count > 0))
        return status_fail(STATUS_USAGE, "data show needs either --data-path or --data");
    if (options->data && !options->tokenizer)
        return status_fail(STATUS_USAGE, "--data needs --tokenizer");
    if (!options->data && !config_is_given(config, "seq-length"))
        return status_fail(STATUS_USAGE, "data show: --seq-length is not given");
    for (size_t i = 0; !options->data && i < sizeof of_rows / sizeof *of_rows; i++)
        if (config_is_given(config, of_rows[i]))
            return status_fail(STATUS_USAGE, "--%s needs --data", of_rows[i]);
    return STATUS_OK;
}

static int show(const struct show_options *options, bool is_sample) {
    struct tokenizer *tokenizer = NULL;
    struct gpt_data data = {0};
    struct gpt_data_options wanted = {
        .data_path = options->data_path,
        .split = options->split,
        .seq_length = options->seq_length,
        .seed = options->seed,
        .samples = {GPT_NOT_WANTED, GPT_NOT_WANTED, GPT_NOT_WANTED},
        .data_cache_path = options->data_cache_path,
        .rules = {.eod_id = options->eod_id,
                  .pad_id = -1,
                  .eod_mask_loss = options->eod_mask_loss,
                  .reset_position_ids = options->reset_position_ids,
                  .reset_attention_mask = options->reset_attention_mask},
    };
    wanted.samples[options->which] = options->num_samples;
    int status = options->tokenizer ? pretrained_open_tokenizer(options->tokenizer, &tokenizer) : STATUS_OK;
    if (!status && tokenizer) {
        wanted.rules.eod_id = tokenizer_eos_id(tokenizer);
        wanted.rules.vocab_size = tokenizer_vocab_size(tokenizer);
    }
    THEN(status, gpt_data_open(&data, &wanted));
    if (!status && is_sample)
        status = print_sample(&data.splits[options->which], options, tokenizer);
    else if (!status)
        print_split(&data.splits[options->which]);
    THEN_IF(status, (fflush(stdout) || ferror(stdout)), status_fail_errno("cannot write standard output"));
    gpt_data_close(&data);
    tokenizer_close(tokenizer);
    return status;
}

static int run(const void *values, const struct config *given) {
    const struct show_options *options = values;
    TRY(check(options, given));
    return options->data ? show_row(options) : show(options, config_is_given(given, "sample"));
}

int command_data(int argc, char **argv) {
    static const char usage[] = "usage: cambium data show [OPTIONS]; 'cambium data show --help' explains them";
    bool is_show = argc > 0 && !strcmp(argv[0], "show");
    if (argc == 0 || (!is_show && argv[0][0] != '-')) {
        if (argc > 0)
            log_error("unknown word '%s' after 'cambium data'; %s", argv[0], usage);
        else
            log_error("%s", usage);
        return 2;
    }
    return command_run(&show_command, argc - is_show, argv + is_show, &(struct show_options){0}, run);
}
