/* Files and tuning jobs of OpenAI's API as JSON: what a request for a job says, pages of lists, and the objects of
 * answers. State that must survive a restart is kept as these same objects (serve/jobs.h). */
#pragma once

#include "error.h"

#include "base/json.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    OPENAI_ID_BYTES = 40,       /* of a file, a job, an event or a checkpoint */
    OPENAI_SUFFIX_BYTES = 65,   /* of a model's name, with its zero byte */
    OPENAI_MODEL_BYTES = 256,   /* of a model's name, with its zero byte */
    OPENAI_METADATA_PAIRS = 16, /* each of 64 and 512 characters */
};

/* ---- a request for a job ---- */

enum openai_method { OPENAI_SUPERVISED, OPENAI_DPO };
/* Hyperparameters; 0 is "auto". */
struct openai_hyperparameters {
    int64_t epochs, batch_size;
    double rate, beta; /* `rate` multiplies the method's default learning rate; `beta` is of dpo */
};
struct openai_job {
    const char *model, *training_file, *validation_file, *suffix; /* the last two may be NULL */
    bool has_seed;
    int64_t seed;
    enum openai_method method;
    struct openai_hyperparameters values;
    const json_t *metadata; /* NULL: none */
    const json_t *keys;     /* of `cambium`: finetune's, by dotted names; NULL: none */
};
/* Reads a request; strings and objects are the root's. Errors are ERROR_ARGUMENT with the field's path. */
bool openai_job_read(const json_t *root, struct openai_job *job, struct error *error);
/* Makes the words of `cambium finetune` that a key of `cambium` stands for, such as "--peft" "lora" or "--peft.r=16",
 * and adds them to `words`, an array of strings. Keys are checked by finetune. Returns false for a value that is none.
 */
bool openai_job_add_words(json_t *words, const char *key, const json_t *value, struct error *error);
/* Returns the object of a new job with status "queued". Fields that follow from the rows are null or "auto". NULL: no
 * memory. */
json_t *openai_job_object(const struct openai_job *job, const char *id, int64_t now);
/* Writes the model's name "ft:BASE:SUFFIX:" and the last 8 characters of the id. Other characters than those of names
 * become dashes, and a long BASE is cut. `step` above 0: the name of an earlier checkpoint. */
void openai_job_model(const char *base, const char *suffix, const char *id, int64_t step,
                      char name[OPENAI_MODEL_BYTES]);

/* ---- lists ---- */

/* The page of a list that a query asks for. */
struct openai_page {
    int64_t limit;
    char after[OPENAI_ID_BYTES]; /* "": from the start */
    char purpose[32];            /* "": any */
    bool is_ascending;
};
/* Reads limit, after, order and purpose; others are ignored. ERROR_ARGUMENT. */
bool openai_page_read(const char *query, int64_t limit, int64_t most, struct openai_page *page, struct error *error);

/* Items of a list while it is written. */
struct openai_list {
    const struct openai_page *page;
    struct strbuf out;
    char first[OPENAI_ID_BYTES], last[OPENAI_ID_BYTES];
    int64_t count;
    bool has_more, has_begun;
};
/* Begins a list; `page` outlives it. */
void openai_list_begin(struct openai_list *list, const struct openai_page *page);
/* Returns true when the page has the item with this id: the caller then appends its JSON to list->out. Offer all items
 * in order. */
bool openai_list_takes(struct openai_list *list, const char *id);
/* Ends the object in list->out, which the caller answers with or frees. */
void openai_list_end(struct openai_list *list);

/* ---- objects ---- */

struct openai_file {
    char id[OPENAI_ID_BYTES], filename[256];
    const char *purpose;
    int64_t bytes, created;
};
/* Returns the object of a file. NULL: no memory. */
json_t *openai_file_object(const struct openai_file *file);

/* One step's figures; NaN: not known. */
struct openai_figures {
    int64_t step, total;
    double train_loss, valid_loss;
};
struct openai_event {
    char id[OPENAI_ID_BYTES];
    int64_t created;
    const char *level, *message;
    const struct openai_figures *figures; /* of an event of type "metrics"; NULL: "message" */
};
/* Appends the object of an event. */
void openai_event_add(const struct openai_event *event, struct strbuf *out);
/* Returns {"step","train_loss",...} of these figures, as checkpoints and events have them. */
json_t *openai_figures_object(const struct openai_figures *figures);
