/* A run's report on standard error: a line each log_interval iterations, a bar on a terminal, the end. */
#include "train-internal.h"

enum { LINE_BYTES = 256 };

/* Formats a rate with commas at the thousands; it is below 10^9 tokens a second. */
static void format_rate(char *out, size_t bytes, double tokens_per_s) {
    long rate = (long)(tokens_per_s + 0.5);
    if (rate >= 1000000)
        snprintf(out, bytes, "%ld,%03ld,%03ld", rate / 1000000, rate / 1000 % 1000, rate % 1000);
    else if (rate >= 1000)
        snprintf(out, bytes, "%ld,%03ld", rate / 1000, rate % 1000);
    else
        snprintf(out, bytes, "%.3g", tokens_per_s);
}

static void format_left(char *out, size_t bytes, double seconds) {
    long left = (long)(seconds + 0.5);
    if (left >= 3600)
        snprintf(out, bytes, "%ldh %02ldm left", left / 3600, left / 60 % 60);
    else if (left >= 60)
        snprintf(out, bytes, "%ldm %02lds left", left / 60, left % 60);
    else
        snprintf(out, bytes, "%lds left", left);
}

void report_begin(struct report *report, const struct trainer *trainer, double ceiling_tflops) {
    *report = (struct report){.trainer = trainer,
                              .first_iteration = trainer->iteration,
                              .start = clock_seconds(),
                              .ceiling_tflops = ceiling_tflops};
    progress_begin(&report->progress, "training", trainer->run.config.train.train_iters);
}

void report_step(struct report *report, const struct train_record *record) {
    const struct run_config *run = &report->trainer->run.config;
    char detail[LINE_BYTES], rate[32], left[32], share[48] = "", rewards[64] = "";
    int64_t done = record->iteration, total = run->train.train_iters;
    double now = clock_seconds();
    bool is_first = done == report->first_iteration + 1;
    report->work += is_first ? 0 : record->work;
    /* The first iteration also prepares the products and reads the text for the first time, so it says little about
     * later ones. */
    double since = is_first ? report->start : report->first_end, work = is_first ? record->work : report->work;
    double seconds_left = (now - since) / work * train_work_left(report->trainer);
    if (is_first)
        report->first_end = now;
    format_rate(rate, sizeof rate, record->tokens_per_s);
    format_left(left, sizeof left, seconds_left);
    if (report->ceiling_tflops > 0)
        snprintf(share, sizeof share, " (%.0f%% of the GEMM ceiling)",
                 100 * record->model_tflops / report->ceiling_tflops);
    if (record->has_rewards)
        snprintf(rewards, sizeof rewards, "  margin %.4f  accuracy %.2f", record->rewards.margin,
                 record->rewards.accuracy);
    snprintf(detail, sizeof detail, "loss %.4f%s  lr %.3e  grad norm %.3f  %s tokens/s  %.3f model TFLOP/s%s",
             record->lm_loss, rewards, record->lr, record->grad_norm, rate, record->model_tflops, share);
    if (is_first || done == total || done % run->log.log_interval == 0) {
        progress_clear(&report->progress);
        log_info("iteration %*lld/%lld  %s  %s", (int)snprintf(NULL, 0, "%lld", (long long)total), (long long)done,
                 (long long)total, detail, left);
    }
    if (log_is_terminal()) {
        /* The start from which the mean gives this remaining time, also after a resume. */
        report->progress.start = now - (done < total ? seconds_left * (double)done / (double)(total - done) : 0);
        progress_update(&report->progress, done, "%lld/%lld  loss %.4f  %s tokens/s", (long long)done, (long long)total,
                        record->lm_loss, rate);
    }
}

void report_validation(struct report *report, const struct validation_record *record, bool is_kept) {
    const char *directory = report->trainer->run.config.checkpoint.save;
    progress_clear(&report->progress);
    log_info("iteration %lld  validation loss %.4f  (%.1f s)", (long long)record->iteration, record->valid_loss,
             record->seconds);
    if (is_kept && directory)
        log_info("the best so far: kept in %s/best", directory);
}

void report_pause(struct report *report) {
    progress_clear(&report->progress);
}

void report_end(struct report *report) {
    const struct trainer *trainer = report->trainer;
    double seconds = clock_seconds() - report->start;
    int64_t iterations = trainer->iteration - report->first_iteration;
    progress_clear(&report->progress);
    log_info("%lld iterations, %.4g tokens in %.1f s", (long long)iterations, (double)trainer->tokens, seconds);
}

int trainer_tell_memory(struct trainer *trainer, size_t program) {
    const struct gpt_data_bytes *once = &trainer->plan.of_data; /* the ranks of a process share it */
    int64_t planned = (int64_t)(train_plan_total(&trainer->plan) + program);
    if (!trainer->site.is_first_in_process)
        planned -= (int64_t)(once->maps + once->process + program);
    int status = rank_site_sum(trainer->world, &trainer->site, &planned, 1);
    return status ? status : rank_site_tell_memory(trainer->world, &trainer->site, (size_t)planned);
}
