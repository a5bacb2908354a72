/* Adapters' files, on a worker: found, checked and read; and the check of all adapters below the root. A refusal is
 * remembered until the files change. */
#include "registry-internal.h"

#include "log.h"

#include "openai/tools.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- one directory ---- */

/* Returns the place of a directory: one of the options, or one below the root. */
static struct peft_place place_of(const struct serve_options *options, const char *directory) {
    const char *root = options->adapter_root;
    size_t length = root ? strlen(root) : 0;
    if (root && !strncmp(directory, root, length) && directory[length] == '/')
        return (struct peft_place){.root = root, .path = directory + length + 1};
    return (struct peft_place){.path = directory};
}

int registry_look(const char *directory, char **found, struct chat_template **chat_template) {
    int status = adapter_files_find(directory, found);
    *chat_template = NULL;
    if (!status && peft_chat_template(*found, chat_template))
        log_warning("%s: the adapter counts as one without a chat template", status_text());
    return status;
}

uint64_t registry_identity(const struct statx *info) {
    struct statx_timestamp birth = info->stx_mask & STATX_BTIME ? info->stx_btime : (struct statx_timestamp){0};
    uint64_t facts[] = {info->stx_dev_major, info->stx_dev_minor, info->stx_ino, (uint64_t)birth.tv_sec, birth.tv_nsec};
    return digest_bytes(DIGEST_START, facts, sizeof facts);
}

bool registry_is_below(const char *root, const char *name, char path[PATH_MAX], struct unloaded *identity) {
    struct statx info;
    if (!root || !registry_name_is_valid(name) || file_join(path, PATH_MAX, root, name) ||
        statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &info) || !S_ISDIR(info.stx_mode))
        return false;
    *identity = (struct unloaded){.identity = registry_identity(&info)};
    snprintf(identity->name, sizeof identity->name, "%s", name);
    return true;
}

/* True when the files are at fault, rather than memory or another program that is writing them. */
static bool is_of_files(int status) {
    return status == STATUS_INVALID || status == STATUS_UNSUPPORTED;
}

/* ---- a change ---- */

static int read_facts(const struct adapter_files *files, struct adapter_facts *facts) {
    struct peft_files *opened = NULL;
    int status = peft_files_open_bytes(&files->bytes, 1, &opened);
    *facts = (struct adapter_facts){0};
    if (!status) {
        snprintf(facts->methods, sizeof facts->methods, "%s", peft_method_names[peft_files_configs(opened)[0].type]);
        facts->parameters = ckpt_elements(peft_files_tensors(opened, 0));
        if (peft_bytes_chat_template(&files->bytes, &facts->chat_template))
            log_warning("%s: the adapter counts as one without a chat template", status_text());
    }
    peft_files_close(opened);
    return status;
}

static int resolve(struct pending *pending) {
    char *found;
    int status = adapter_files_find(pending->directory, &found);
    if (!status)
        snprintf(pending->directory, sizeof pending->directory, "%s", found);
    free(found);
    return status;
}

void registry_read(struct worker_job *job) {
    struct pending *pending = (struct pending *)job;
    struct driver_change *change = &pending->change;
    const struct registry *registry = pending->server->registry;
    if (change->kind == CHANGE_UNLOAD || change->error.which)
        return;
    int status = pending->is_named ? resolve(pending) : STATUS_OK;
    struct peft_place place = place_of(pending->server->options, pending->directory);
    pending->has_stamp = !status && !change->files.bytes.data && !peft_stamp_directory(&place, &pending->stamp);
    if (pending->has_stamp && refusals_find(registry->refusals, pending->directory, pending->stamp, &change->error))
        return;
    THEN_IF(status, !change->files.bytes.data, adapter_files_read(&place, &registry->limits, &change->files));
    THEN(status, read_facts(&change->files, &change->facts));
    THEN(status, openai_tools_warn(&pending->server->model, change->facts.chat_template, change->name));
    if (!status)
        return;
    adapter_error(&change->error, status, pending->server->options->adapter_root);
    registry_remember(pending->server->registry, pending, status);
}

void registry_remember(struct registry *registry, const struct pending *pending, int status) {
    if (pending->has_stamp && is_of_files(status))
        refusals_add(registry->refusals, pending->directory, pending->stamp, &pending->change.error);
}

bool registry_is_refused(const struct server *server, const struct entry *entry) {
    struct peft_place place = place_of(server->options, entry->directory);
    uint64_t stamp;
    return entry->was_refused && !peft_stamp_directory(&place, &stamp) && stamp == entry->refused_stamp;
}

/* ---- all below the root ---- */

struct registry_checks {
    struct worker_job job;
    struct server *server;
    char (*names)[ADAPTER_NAME_BYTES]; /* [count] */
    int count, next;
    char directory[PATH_MAX]; /* of the adapter being checked */
    uint64_t stamp;
    struct error error;
    struct adapter_report report;
};

void registry_free_checks(struct registry_checks *checks) {
    if (!checks)
        return;
    adapter_report_free(&checks->report);
    free(checks->names);
    free(checks);
}

static void check_one(struct worker_job *job) {
    struct registry_checks *checks = (struct registry_checks *)job;
    const struct registry *registry = checks->server->registry;
    struct peft_place place = place_of(checks->server->options, checks->directory);
    checks->error = (struct error){0};
    int status = peft_stamp_directory(&place, &checks->stamp);
    THEN(status, peft_check_directory(&place, &registry->limits));
    if (!status)
        return;
    adapter_error(&checks->error, status, checks->server->options->adapter_root);
    if (is_of_files(status))
        refusals_add(registry->refusals, checks->directory, checks->stamp, &checks->error);
}

static void start_check(struct registry_checks *checks);

static void on_checked(struct worker_job *job) {
    struct registry_checks *checks = (struct registry_checks *)job;
    struct entry *entry = registry_entry(checks->server->registry, checks->names[checks->next - 1]);
    if (entry && checks->error.which == ERROR_ADAPTER_INVALID) {
        entry->was_refused = true;
        entry->refused_stamp = checks->stamp;
    }
    adapter_report_add(&checks->report, checks->names[checks->next - 1],
                       checks->error.which ? checks->error.text : NULL);
    start_check(checks);
}

/* Starts the check of the next adapter that is still known and was not loaded meanwhile. */
static void start_check(struct registry_checks *checks) {
    const struct registry *registry = checks->server->registry;
    while (checks->next < checks->count && !checks->server->core->is_ending) {
        const struct entry *entry = registry_entry(registry, checks->names[checks->next++]);
        if (!entry || entry->at.generation)
            continue;
        snprintf(checks->directory, sizeof checks->directory, "%s", entry->directory);
        if (worker_add(checks->server->core->file_worker, &checks->job))
            return;
    }
    struct server *server = checks->server;
    const char *line = adapter_report_line(&checks->report);
    if (line)
        log_event(server, LOG_WARNING, "adapters", "%s", line);
    server->registry->checks = NULL;
    registry_free_checks(checks);
}

void registry_begin_checks(struct server *server) {
    struct registry *registry = server->registry;
    struct registry_checks *checks = calloc(1, sizeof *checks);
    if (checks)
        checks->names = calloc((size_t)registry->count + 1, sizeof *checks->names);
    if (!checks || !checks->names) {
        free(checks);
        return; /* each is checked at its first request */
    }
    checks->server = server;
    checks->job.work = check_one;
    checks->job.done = on_checked;
    for (int i = 0; i < registry->count; i++) {
        struct peft_place place = place_of(server->options, registry->entries[i]->directory);
        if (place.root)
            memcpy(checks->names[checks->count++], registry->entries[i]->name, ADAPTER_NAME_BYTES);
    }
    registry->checks = checks;
    start_check(checks);
}
