/* An answer: its choices, and everything around them. */
#include "openai.h"

#include "json_out.h"

#include "base/base.h"

/* ---- choices ---- */

static int64_t prompt_of(const struct openai *request, const struct openai_choice *choice) {
    return (choice - request->choices) / request->asked->ask.choices;
}

const char *openai_finish_reason(const struct openai_choice *choice) {
    return !choice->is_ended   ? "null"
           : !choice->is_stop  ? "\"length\""
           : choice->has_calls ? "\"tool_calls\""
                               : "\"stop\"";
}

static void add_token(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                      const struct call_token *reported, struct openai_part *part) {
    struct openai_token token = {.tokenizer = request->model->tokenizer,
                                 .token = reported,
                                 .tops = update->tops + reported->first_top,
                                 .most = request->tops,
                                 .is_first = request->is_chat && !request->continues && !choice->has_token};
    choice->has_token = true;
    if (request->tells_logprobs && request->is_plain)
        openai_add_plain_token(&part->content, &token);
    else if (request->tells_logprobs && request->is_chat)
        openai_add_chat_token(part, &token);
    else if (request->tells_logprobs)
        openai_add_completion_token(part, &choice->place, &token);
}

/* Passes on text out of which nothing is read. */
static int pass_text(struct openai *request, struct openai_choice *choice, const char *text, size_t length) {
    return request->on_event(request->event_context, choice,
                             &(struct call_event){.kind = CALL_TEXT, .text = text, .length = length});
}

void openai_take(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                 const struct call_piece *piece, const struct call_end *end, struct openai_part *part) {
    const struct openai_prompt *prompt = &request->prompts[prompt_of(request, choice)];
    if (!choice->has_begun && request->echoes) {
        if (request->is_stream)
            openai_part_join(part, &prompt->part);
        choice->place = prompt->place;
    }
    choice->has_begun = true;
    for (int64_t i = 0; piece && i < piece->token_count; i++) {
        const struct call_token *token = &update->tokens[piece->first_token + i];
        add_token(request, choice, update, token, part);
        if (request->returns_ids)
            strbuf_format(&part->ids, "%s%d", part->ids.length ? "," : "", token->id);
    }
    if (openai_reads(request))
        part->text.failed |= openai_read_piece(request, choice, update, piece, end) != STATUS_OK;
    else if (piece && request->on_event)
        part->text.failed |=
            pass_text(request, choice, strbuf_text(&update->text) + piece->begin, piece->length) != STATUS_OK;
    else if (piece)
        strbuf_add(&part->text, strbuf_text(&update->text) + piece->begin, piece->length);
    if (!end)
        return;
    choice->is_ended = true;
    choice->is_stop = end->is_stop;
    choice->stop = end->stop;
    if (end->has_token && !request->is_chat &&
        !request->is_plain) /* the others' log-probabilities cover only the text */
        add_token(request, choice, update, &end->token, part);
}

/* ---- around them ---- */

void openai_add_head(const struct openai *request, struct strbuf *out) {
    struct strbuf id = STRBUF_INIT;
    strbuf_format(&id, "%s-%s", request->is_chat ? "chatcmpl" : "cmpl", request->id);
    strbuf_add_text(out, "\"id\":");
    json_out_text(out, strbuf_text(&id));
    strbuf_format(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":",
                  !request->is_chat    ? "text_completion"
                  : request->is_stream ? "chat.completion.chunk"
                                       : "chat.completion",
                  (long long)request->created);
    json_out_text(out, request->model_name);
    strbuf_add_text(out, ",\"system_fingerprint\":");
    json_out_text(out, request->model->fingerprint);
    strbuf_add_char(out, ',');
    out->failed |= id.failed;
    strbuf_free(&id);
}

static void add_prompt_facts(const struct openai *request, int64_t prompt, struct strbuf *out) {
    if (request->returns_ids) {
        const struct token_buffer *ids = &request->asked->prompts[prompt].ids;
        strbuf_add_text(out, ",\"prompt_token_ids\":[");
        for (size_t i = 0; i < ids->count; i++)
            strbuf_format(out, i ? ",%d" : "%d", ids->ids[i]);
        strbuf_add_char(out, ']');
    }
    if (request->prompt_tops >= 0) {
        const struct strbuf *reported = &request->prompts[prompt].logprobs;
        strbuf_add_text(out, ",\"prompt_logprobs\":[");
        strbuf_add(out, strbuf_text(reported), reported->length);
        strbuf_add_char(out, ']');
    }
}

void openai_add_prompt_facts(const struct openai *request, const struct openai_choice *choice, struct strbuf *out) {
    add_prompt_facts(request, prompt_of(request, choice), out);
}

void openai_add_facts(const struct openai *request, struct strbuf *out) {
    const struct ask *ask = &request->asked->ask;
    strbuf_add_text(out, "\"adapters\":[");
    for (int64_t i = 0; i < ask->adapter_count; i++) {
        strbuf_add_text(out, i ? ",{\"name\":" : "{\"name\":");
        json_out_text(out, ask->adapters[i]);
        strbuf_format(out, ",\"generation\":%llu}", (unsigned long long)request->generations[i]);
    }
    strbuf_format(out, "],\"seed\":%lld", (long long)ask->sampling.seed);
    if (request->is_chat)
        add_prompt_facts(request, 0, out);
    if (request->ignored_count)
        strbuf_format(out, ",\"ignored\":[%s]", strbuf_text(&request->ignored_names));
    out->failed |= request->ignored_names.failed;
    strbuf_add_char(out, ',');
}

int64_t openai_prompt_tokens(const struct openai *request, int64_t *cached) {
    int64_t count = 0;
    *cached = 0;
    for (int64_t i = 0; i < request->asked->prompt_count; i++) {
        count += (int64_t)request->asked->prompts[i].ids.count;
        *cached += request->cached[i];
    }
    return count;
}

void openai_add_usage(const struct openai *request, struct strbuf *out) {
    int64_t cached, prompts = openai_prompt_tokens(request, &cached);
    strbuf_format(out,
                  "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%lld}",
                  (long long)prompts, (long long)request->completion_tokens,
                  (long long)(prompts + request->completion_tokens), (long long)cached);
    if (request->is_chat && request->asked->prompts[0].thought != THOUGHT_NEVER)
        strbuf_format(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%lld}",
                      (long long)request->reasoning_tokens);
    strbuf_add_char(out, '}');
}

/* ---- prompts ---- */

/* Keeps a prompt's tokens until the answer is built. Only the place after them is needed before. */
static void keep_prompt_tokens(struct openai *request, const struct call_update *update,
                               const struct call_piece *piece) {
    struct openai_prompt *prompt = &request->prompts[piece->prompt];
    if (kept_tokens_add(&prompt->kept, update, piece))
        prompt->logprobs.failed = true;
    for (int64_t i = 0; request->echoes && request->tells_logprobs && i < piece->token_count; i++) {
        struct openai_token token = {.tokenizer = request->model->tokenizer,
                                     .token = &update->tokens[piece->first_token + i]};
        openai_move_place(&prompt->place, &token);
    }
}

void openai_take_prompts(struct openai *request, const struct call_update *update) {
    for (int64_t i = 0; i < update->piece_count; i++) {
        const struct call_piece *piece = &update->pieces[i];
        if (piece->choice < 0 && request->is_stream)
            openai_add_prompt_tokens(request, &request->prompts[piece->prompt], update->tokens + piece->first_token,
                                     piece->token_count, update->tops);
        else if (piece->choice < 0)
            keep_prompt_tokens(request, update, piece);
    }
}

/* ---- answers that are one JSON text ---- */

void openai_take_all(struct openai *request, const struct call_update *update) {
    int64_t choices = request->asked->ask.choices;
    for (int64_t i = 0; i < update->piece_count; i++) {
        const struct call_piece *piece = &update->pieces[i];
        if (piece->choice < 0)
            continue;
        struct openai_choice *choice = &request->choices[piece->prompt * choices + piece->choice];
        openai_take(request, choice, update, piece, NULL, &choice->part);
    }
    for (int64_t i = 0; i < update->end_count; i++) {
        const struct call_end *end = &update->ends[i];
        struct openai_choice *choice = &request->choices[end->prompt * choices + end->choice];
        openai_take(request, choice, update, NULL, end, &choice->part);
    }
}

void openai_add_message_parts(const struct openai_choice *choice, const char *reasoning, struct strbuf *out) {
    if (choice->reasoning.length) {
        strbuf_format(out, ",\"%s\":", reasoning);
        json_out_string(out, choice->reasoning.data, choice->reasoning.length);
    }
    for (size_t i = 0; i < choice->call_count; i++) {
        const struct openai_call *call = &choice->calls[i];
        strbuf_format(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"%s\",\"arguments\":",
                      i ? "," : ",\"tool_calls\":[", call->id, call->name);
        json_out_string(out, strbuf_text(&call->arguments), call->arguments.length);
        strbuf_add_text(out, "}}");
    }
    if (choice->call_count)
        strbuf_add_char(out, ']');
}

static void add_choice(const struct openai *request, const struct openai_choice *choice, struct strbuf *out) {
    const struct openai_part *reported = &choice->part;
    struct openai_part part = {.text = STRBUF_INIT};
    if (request->echoes)
        openai_part_join(&part, &request->prompts[prompt_of(request, choice)].part);
    openai_part_join(&part, reported);
    strbuf_format(out, "{\"index\":%td,", choice - request->choices);
    if (request->is_chat) {
        strbuf_add_text(out, "\"message\":{\"role\":\"assistant\",\"content\":");
        if (choice->call_count && !part.text.length)
            strbuf_add_text(out, "null");
        else
            json_out_string(out, strbuf_text(&part.text), part.text.length);
        openai_add_message_parts(choice, "reasoning_content", out);
        strbuf_add_text(out, ",\"refusal\":null},");
    } else {
        strbuf_add_text(out, "\"text\":");
        json_out_string(out, strbuf_text(&part.text), part.text.length);
        strbuf_add_char(out, ',');
    }
    openai_add_logprobs(out, &part, request->is_chat, request->tells_logprobs);
    strbuf_format(out, ",\"finish_reason\":%s", openai_finish_reason(choice));
    if (request->returns_ids)
        strbuf_format(out, ",\"token_ids\":[%s]", strbuf_text(&reported->ids));
    if (!request->is_chat)
        openai_add_prompt_facts(request, choice, out);
    strbuf_add_char(out, '}');
    out->failed |= openai_part_failed(&part) || reported->ids.failed;
    openai_part_free(&part);
}

void openai_write_prompts(struct openai *request) {
    for (int64_t i = 0; i < request->asked->prompt_count; i++) {
        struct openai_prompt *prompt = &request->prompts[i];
        prompt->place = (struct openai_place){0};
        openai_add_prompt_tokens(request, prompt, prompt->kept.tokens, prompt->kept.count, prompt->kept.tops);
        kept_tokens_free(&prompt->kept);
    }
}

void openai_build(struct openai *request, struct strbuf *out) {
    openai_write_prompts(request);
    if (request->kind->dialect) {
        request->kind->dialect->build(request, out);
        return;
    }
    strbuf_add_char(out, '{');
    openai_add_head(request, out);
    openai_add_facts(request, out);
    strbuf_add_text(out, "\"choices\":[");
    for (int64_t i = 0; i < request->choice_count; i++) {
        if (i)
            strbuf_add_char(out, ',');
        add_choice(request, &request->choices[i], out);
        openai_part_free(&request->choices[i].part); /* the answer holds it now */
        request->choices[i].part = (struct openai_part){.text = STRBUF_INIT};
    }
    strbuf_add_text(out, "],");
    openai_add_usage(request, out);
    strbuf_add_char(out, '}');
    for (int64_t i = 0; i < request->asked->prompt_count; i++)
        out->failed |= request->prompts[i].logprobs.failed || openai_part_failed(&request->prompts[i].part);
}

size_t openai_known_bytes(const struct openai *request) {
    size_t bytes = 0;
    for (int64_t i = 0; i < request->asked->prompt_count; i++) {
        const struct openai_prompt *prompt = &request->prompts[i];
        bytes += prompt->part.text.length + (size_t)prompt->kept.count * sizeof *prompt->kept.tokens +
                 (size_t)prompt->kept.top_count * sizeof *prompt->kept.tops;
    }
    for (int64_t i = 0; i < request->choice_count; i++) {
        const struct openai_part *part = &request->choices[i].part;
        bytes += part->text.length + part->ids.length + part->tokens.length + part->logprobs.length +
                 part->tops.length + part->offsets.length + part->content.length + request->choices[i].reasoning.length;
        for (size_t k = 0; k < request->choices[i].call_count; k++)
            bytes += sizeof *request->choices[i].calls + request->choices[i].calls[k].arguments.length;
    }
    return bytes;
}
