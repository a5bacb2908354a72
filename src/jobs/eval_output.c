/* Writes the results of `eval`: a table for people, JSON for programs, and a line for each request. */
#include "eval-internal.h"

/* ---- the table ---- */

/* Prints a line for each metric; the first one names the task. */
static void print_task(const struct task *task, const struct eval_result *result) {
    char rows[24];
    bool is_first = true;
    snprintf(rows, sizeof rows, "%lld", (long long)result->sums.rows);
    for (int m = 0; m < TASK_METRICS; m++) {
        if (!(task->metrics >> m & 1))
            continue;
        printf("%-16s %8s  %-15s %14.6g", is_first ? task->name : "", is_first ? rows : "", task_metric_names[m],
               task_sums_value(&result->sums, m));
        if (task_metric_counts(m) && result->sums.rows > 1)
            printf("  +/- %.4f", task_sums_error(&result->sums, m));
        printf("\n");
        is_first = false;
    }
}

int eval_print(const struct eval_job *job, const struct eval_result *results) {
    printf("%-16s %8s  %-15s %14s  %s\n", "task", "rows", "metric", "value", "error");
    for (int64_t i = 0; i < job->task_count; i++)
        if (results[i].sums.rows)
            print_task(job->tasks[i].task, &results[i]);
    return fflush(stdout) || ferror(stdout) ? status_fail_errno("cannot write to standard output") : STATUS_OK;
}

/* ---- the output ---- */

static json_t *task_object(const struct eval_task *task, const struct eval_result *result) {
    json_t *metrics = json_object(), *errors = json_object();
    for (int m = 0; m < TASK_METRICS; m++) {
        if (!(task->task->metrics >> m & 1))
            continue;
        json_object_set_new(metrics, task_metric_names[m], json_number(task_sums_value(&result->sums, m)));
        if (task_metric_counts(m))
            json_object_set_new(errors, task_metric_names[m], json_number(task_sums_error(&result->sums, m)));
    }
    return json_pack("{s:s, s:s, s:I, s:I, s:f, s:o, s:o}", "task", task->task->name, "file", task->path, "rows",
                     (json_int_t)result->sums.rows, "requests", (json_int_t)result->requests, "seconds",
                     result->ended - result->began, "metrics", metrics, "stderr", errors);
}

int eval_write(const struct eval_job *job, const struct engine *engine, int ranks, const struct eval_result *results) {
    char digest[PEFT_DIGEST_BYTES], *text = NULL;
    TRY(peft_base_digest(engine_directory(engine), digest));
    json_begin();
    json_t *adapters = json_array(), *tasks = json_array();
    for (size_t i = 0; i < job->model->adapters.count; i++)
        json_array_append_new(adapters, json_string(job->model->adapters.items[i]));
    for (int64_t i = 0; i < job->task_count; i++)
        if (results[i].sums.rows)
            json_array_append_new(tasks, task_object(&job->tasks[i], &results[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:o, s:s, s:i, s:o}", "version", job->version, "model", job->model->model, "digest",
                  digest, "adapters", adapters, "precision", engine_precision(engine), "ranks", ranks, "tasks", tasks);
    int status = json_end(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17), &text);
    THEN(status, file_write_atomic(job->output, text, strlen(text)));
    free(text);
    return status;
}

/* ---- samples ---- */

static void write_ids(FILE *out, const char *name, const int32_t *ids, int64_t count) {
    fprintf(out, ", \"%s\": [", name);
    for (int64_t i = 0; i < count; i++)
        fprintf(out, i ? ", %d" : "%d", ids[i]);
    fputc(']', out);
}

static void write_text(FILE *out, const char *name, const char *text, size_t length) {
    struct strbuf quoted = STRBUF_INIT;
    json_add_string(&quoted, text, length);
    fprintf(out, ", \"%s\": %s", name, strbuf_text(&quoted));
    strbuf_free(&quoted);
}

void eval_write_completion(const struct eval_job *job, const struct eval_row *row,
                           const struct likelihood_list *requests, const struct eval_prompt *prompt,
                           const struct strbuf *text, bool is_answer, FILE *out) {
    struct task_span answer = row->texts.requests[0].continuation;
    fprintf(out, "{\"task\": \"%s\", \"row\": %lld", job->tasks[row->task].task->name, (long long)row->number);
    write_ids(out, "context_tokens", requests->ids.ids + prompt->request->start, prompt->request->count);
    write_text(out, "completion", strbuf_text(text), text->length);
    write_text(out, "answer", strbuf_text(&row->texts.texts) + answer.start, answer.length);
    fprintf(out, ", \"exact_match\": %s}\n", is_answer ? "true" : "false");
}

void eval_write_samples(const struct eval_job *job, const struct eval_row *row, const struct likelihood_list *requests,
                        FILE *out) {
    for (int64_t i = 0; i < row->request_count; i++) {
        const struct likelihood *request = &requests->items[row->first + i];
        const int32_t *ids = requests->ids.ids + request->start;
        fprintf(out, "{\"task\": \"%s\", \"row\": %lld, \"choice\": %lld", job->tasks[row->task].task->name,
                (long long)row->number, (long long)i);
        write_ids(out, "context_tokens", ids, request->first);
        write_ids(out, "continuation_tokens", ids + request->first, request->count - request->first);
        fprintf(out, ", \"logprob\": %.17g, \"is_greedy\": %s}\n", request->logprob,
                request->is_greedy ? "true" : "false");
    }
}
