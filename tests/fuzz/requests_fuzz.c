/* Any bytes as a line of `generate --requests`. It is refused with one line of text, and perhaps the name of a field,
 * or gives a request whose values are all in their ranges. */
#include "jobs/requests_batch.h"
#include "jobs/requests_line.h"

#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 100 };

static void check(bool is_right, const char *what) {
    if (is_right)
        return;
    fprintf(stderr, "requests_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static bool is_id(int64_t id) {
    return id >= 0 && id < VOCAB;
}

static void check_ids(const struct request_line *line) {
    for (size_t i = 0; i < line->request.prompts[0].ids.count; i++)
        check(is_id(line->request.prompts[0].ids.ids[i]), "an id of the prompt");
    for (int64_t i = 0; i < line->request.ask.stop_id_count; i++)
        check(is_id(line->request.ask.stop_ids[i]), "a stop id");
    for (int64_t i = 0; i < line->request.ask.bias_count; i++) {
        check(is_id(line->request.ask.bias[i].id) && isfinite(line->request.ask.bias[i].bias), "a bias");
        for (int64_t k = 0; k < i; k++)
            check(line->request.ask.bias[k].id != line->request.ask.bias[i].id, "two biases of an id");
    }
    check(line->request.ask.bias_count <= ASK_MAX_BIASES && line->request.ask.stop_id_count <= ASK_MAX_STOP_IDS,
          "too many changes");
}

static void check_sampling(const struct sampling *s) {
    check(s->temperature >= 0 && s->temperature <= 100, "temperature");
    check(s->top_p >= 0 && s->top_p <= 1, "top_p");
    check(s->min_p >= 0 && s->min_p <= 1, "min_p");
    check(s->top_k >= -1, "top_k");
    check(s->repetition_penalty > 0 && s->repetition_penalty <= 100, "repetition penalty");
    check(fabs(s->presence_penalty) <= 100 && fabs(s->frequency_penalty) <= 100, "penalties");
}

static void check_line(const struct request_line *line) {
    int prompts = (line->request.prompts[0].text != NULL) + (line->request.prompts[0].ids.count > 0) +
                  (line->request.prompts[0].chat.messages != NULL);
    check(prompts == 1, "not one prompt");
    check(!line->request.prompts[0].text || strlen(line->request.prompts[0].text) <= line->request.prompts[0].length,
          "the prompt's length");
    check(line->request.ask.choices >= 1 && line->request.ask.choices <= ASK_MAX_CHOICES, "choices");
    check(line->request.ask.max_tokens >= -1 && line->request.ask.min_tokens >= 0, "tokens");
    check(line->request.ask.max_tokens < 0 || line->request.ask.min_tokens <= line->request.ask.max_tokens,
          "more tokens at least than at most");
    check(line->request.ask.logprobs >= -1 && line->request.ask.logprobs <= ASK_MAX_TOP, "logprobs");
    check(line->request.ask.prompt_logprobs >= -1 && line->request.ask.prompt_logprobs <= ASK_MAX_TOP,
          "prompt_logprobs");
    check(line->request.ask.priority >= INT32_MIN && line->request.ask.priority <= INT32_MAX, "priority");
    check(line->request.ask.adapter_count <= ASK_MAX_ADAPTERS, "adapters");
    for (int64_t i = 0; i < line->request.ask.adapter_count; i++)
        check(line->request.ask.adapters[i] != NULL, "an adapter without a name");
    struct writer_stops *stops;
    check(!writer_stops_open(line->request.ask.stop, (size_t)line->request.ask.stop_count, &stops),
          "stop strings that cannot be");
    writer_stops_close(stops);
    check(!line->id || json_is_string(line->id) || json_is_integer(line->id), "an id of another type");
    check_ids(line);
    check_sampling(&line->request.ask.sampling);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct request_line line;
    const char *field;
    const struct openai_model model = {.name = "base", .vocab = VOCAB, .most_texts = ASK_MAX_CHOICES};
    status_fail(STATUS_OK, "%s", "");
    int status = request_line_read(&line, (const char *)data, size, 1, &model, &field);
    if (!status)
        check_line(&line);
    else
        check(status == STATUS_INVALID && *status_text(), "refused without a text");
    check(status || !field, "the field of what is right");
    if (field && line.form != &batch_form) /* in OpenAI's form a member may be missing */
        check(!strcmp(field, "prompt") || strlen(field) < size, "a field that the line has not");
    request_line_free(&line);
    return 0;
}
