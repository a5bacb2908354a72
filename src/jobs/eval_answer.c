/* The completions of `eval`: greedy, up to an end of text, the end of a turn or one of --until. */
#include "eval-internal.h"

#include "base/utf8.h"
#include "infer/generate.h"
#include "infer/slots.h"

/* Finds the ends of a text, or of a turn where there is a template. */
static int open_ends(struct eval_completer *c, struct ask_ends *ends) {
    const struct model_text_ends text = engine_text_ends(c->engine, c->tokenizer);
    int status = ask_ends_open(&c->ask,
                               &(struct ask_model){.tokenizer = c->tokenizer,
                                                   .text = &text,
                                                   .vocab = engine_config(c->engine)->vocab_size,
                                                   .template = c->template},
                               ends);
    ends->is_answer = false; /* as lm_eval, which decodes a completion as it decodes any text */
    return status;
}

int eval_completer_open(struct eval_completer *c) {
    return open_ends(c, &c->ends[0]);
}

void eval_completer_close(struct eval_completer *c) {
    ask_ends_close(&c->ends[0]);
    ask_ends_close(&c->ends[1]);
    ask_free(&c->ask);
    chat_template_close(c->template);
}

int eval_completer_need_turns(struct eval_completer *c) {
    const char *directory = c->job->model->tokenizer ? c->job->model->tokenizer : engine_directory(c->engine);
    if (c->has_turns)
        return STATUS_OK;
    int status = job_template_of(c->job->model, c->job->chat_template, directory, &c->template);
    THEN(status, open_ends(c, &c->ends[1]));
    c->has_turns = !status;
    return status;
}

int eval_complete(struct eval_completer *c, const int32_t *ids, const struct eval_prompt *prompts, int64_t count) {
    struct generate_options *options = calloc((size_t)count + 1, sizeof *options);
    struct generated *made = calloc((size_t)count + 1, sizeof *made);
    int status = status_allocated(options && made);
    for (int64_t i = 0; i < count && !status; i++) {
        const struct likelihood *request = prompts[i].request;
        status = request->is_turn ? eval_completer_need_turns(c) : STATUS_OK;
        options[i] = (struct generate_options){.prompt = ids + request->start,
                                               .prompt_length = request->count,
                                               .slot = engine_opened_slot(c->engine),
                                               .ask = &c->ask,
                                               .ends = &c->ends[request->is_turn]};
    }
    THEN(status, generate_all(c->engine, c->tokenizer, options, count, made));
    for (int64_t i = 0; i < count && made; i++) {
        for (size_t k = 0; k < made[i].tokens.count && !status; k++)
            prompts[i].drawn[k + 1] = made[i].tokens.ids[k];
        prompts[i].drawn[0] = (int64_t)made[i].tokens.count;
        generated_free(&made[i]);
    }
    free(options);
    free(made);
    return status;
}

static void cut(struct strbuf *text, const char *end) {
    char *at = *end && text->length ? memmem(text->data, text->length, end, strlen(end)) : NULL;
    if (at) {
        *at = 0;
        text->length = (size_t)(at - text->data);
    }
}

int eval_completion(const struct eval_completer *c, const struct eval_prompt *prompt, struct strbuf *out) {
    const int64_t *drawn = prompt->drawn;
    struct token_buffer ids = TOKEN_BUFFER_INIT;
    int status = STATUS_OK;
    strbuf_clear(out);
    for (int64_t i = 1; i <= drawn[0] && !status; i++)
        if (drawn[i] < tokenizer_vocab_size(c->tokenizer) && !tokenizer_is_special(c->tokenizer, (int32_t)drawn[i]))
            status = token_buffer_add(&ids, (int32_t)drawn[i]);
    struct strbuf bytes = STRBUF_INIT;
    THEN(status, tokenizer_decode(c->tokenizer, ids.ids, ids.count, &bytes));
    if (!status)
        utf8_add_repaired(out, strbuf_text(&bytes), bytes.length);
    THEN(status, strbuf_status(out));
    strbuf_free(&bytes);
    token_buffer_free(&ids);
    for (int64_t i = 0; i < c->ask.stop_count && !status; i++)
        cut(out, c->ask.stop[i].bytes);
    cut(out, c->ends[prompt->request->is_turn].prompt.turn_end);
    return status;
}
