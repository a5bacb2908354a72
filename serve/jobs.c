/* Tuning by OpenAI's API as a whole: opening, beginning, stopping, ending, and its metrics. */
#include "jobs-internal.h"

#include "base/base.h"
#include "base/staging.h"

enum { ERRANDS = 1 << 16 };

/* ---- opening and ending ---- */

static int make_directories(const struct jobs *jobs) {
    static const char *const names[] = {"files", "jobs"};
    char path[PATH_MAX];
    int status = STATUS_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++) {
        status = jobs_path(jobs, path, "%s", names[i]);
        THEN(status, file_make_directories(path));
        THEN(status, staging_clean(path));
    }
    return status;
}

int jobs_open(struct server *server, struct jobs **out) {
    struct jobs *jobs = *out = calloc(1, sizeof *jobs);
    TRY(status_allocated(jobs));
    jobs->server = server;
    jobs->options = server->options;
    TAILQ_INIT(&jobs->files);
    TAILQ_INIT(&jobs->jobs);
    int status = make_directories(jobs);
    THEN(status, jobs_load(jobs));
    THEN(status, worker_open(server->loop, ERRANDS, &jobs->worker));
    if (status)
        return status_wrap(status, "--tuning-root");
    jobs->bytes = jobs_tree_bytes(jobs->options->tuning_root);
    return STATUS_OK;
}

void jobs_begin(struct jobs *jobs) {
    struct job *job;
    jobs->has_begun = true;
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        char path[PATH_MAX];
        size_t i;
        json_t *checkpoint;
        json_array_foreach(job->checkpoints, i, checkpoint) {
            const char *name = json_string_value(json_object_get(checkpoint, "fine_tuned_model_checkpoint"));
            const char *whole = json_string_value(json_object_get(job->object, "fine_tuned_model"));
            int64_t step = json_integer_value(json_object_get(checkpoint, "step_number"));
            if (name && !job_directory(job, whole && !strcmp(name, whole) ? 0 : step, path))
                job_serve(job, name, path);
        }
    }
    jobs_start(jobs);
}

void jobs_stop(struct jobs *jobs, bool is_hasty) {
    struct job *job;
    jobs->is_stopping = true;
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        if (!job->run)
            continue;
        job_wish(job, JOB_STOP);
        job->run->must_close |= is_hasty;
    }
}

bool jobs_are_idle(const struct jobs *jobs) {
    return !jobs || !jobs->under_way;
}

void jobs_end(struct jobs *jobs) {
    if (jobs)
        worker_stop(jobs->worker);
}

void jobs_close(struct jobs *jobs) {
    if (!jobs)
        return;
    for (struct job *job; (job = TAILQ_FIRST(&jobs->jobs));) {
        TAILQ_REMOVE(&jobs->jobs, job, all);
        job_free(job);
    }
    for (struct stored_file *file; (file = TAILQ_FIRST(&jobs->files));) {
        TAILQ_REMOVE(&jobs->files, file, all);
        free(file);
    }
    worker_close(jobs->worker);
    free(jobs);
}

/* ---- metrics ---- */

static void add_metric(struct strbuf *out, const char *name, const char *type, const char *help) {
    strbuf_format(out, "# HELP cambium:tuning_%s %s\n# TYPE cambium:tuning_%s %s\n", name, help, name, type);
}

void jobs_add_metrics(const struct jobs *jobs, struct strbuf *out) {
    static const char *const names[] = {"queued", "running", "paused", "succeeded", "failed", "cancelled"};
    const struct job *job;
    if (!jobs)
        return;
    add_metric(out, "jobs", "gauge", "Tuning jobs by status.");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int count = 0;
        TAILQ_FOREACH(job, &jobs->jobs, all) {
            count += job_is(job, names[i]);
        }
        strbuf_format(out, "cambium:tuning_jobs{status=\"%s\"} %d\n", names[i], count);
    }
    add_metric(out, "tokens_total", "counter", "Tokens that a tuning job has trained on since the server began.");
    TAILQ_FOREACH(job, &jobs->jobs, all) {
        if (job->run && !job->run->only_checks)
            strbuf_format(out, "cambium:tuning_tokens_total{job=\"%s\"} %lld\n", job->id, (long long)job->run->tokens);
    }
    add_metric(out, "slices_total", "counter", "Slices of tuning.");
    strbuf_format(out, "cambium:tuning_slices_total %lld\n", (long long)jobs->spent.slices);
    add_metric(out, "seconds_total", "counter", "Seconds in slices of tuning.");
    strbuf_format(out, "cambium:tuning_seconds_total %.17g\n", jobs->spent.seconds);
    add_metric(out, "memory_bytes", "gauge", "Memory of the tuning runs on the first rank.");
    strbuf_format(out, "cambium:tuning_memory_bytes %.17g\n", jobs->memory);
    add_metric(out, "step_seconds", "histogram", "Seconds of each step of a tuning job.");
    int64_t count = 0;
    for (int i = 0; i < JOBS_BUCKETS; i++) {
        count += jobs->step_counts[i];
        strbuf_format(out, "cambium:tuning_step_seconds_bucket{le=\"%g\"} %lld\n", jobs_buckets[i], (long long)count);
    }
    strbuf_format(out,
                  "cambium:tuning_step_seconds_bucket{le=\"+Inf\"} %lld\ncambium:tuning_step_seconds_sum %.17g\n"
                  "cambium:tuning_step_seconds_count %lld\n",
                  (long long)jobs->steps, jobs->step_seconds, (long long)jobs->steps);
}
