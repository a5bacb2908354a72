/* Codecs and the files of a model: which tensors are parts of linears in few bits. The weights replace their parts, as
 * a source of tensors (exchange.h). */
#include "codec-internal.h"
#include "exchange.h"

#include "base/smaller.h"

enum { MOST_NAMES = 4096 };

static const struct codec *const codecs[] = {
    &codec_gptq,           &codec_awq,           &codec_compressed_packed, &codec_compressed_plain, &codec_fp8,
    &codec_bitsandbytes_4, &codec_bitsandbytes_8};
enum { CODEC_COUNT = sizeof codecs / sizeof *codecs };

static const char weight_ending[] = ".weight";

/* ---- for formats ---- */

int codec_expect(const struct codec_linear *linear, int part, int dims, int64_t first, int64_t second) {
    const struct safetensor *tensor = linear->parts[part].tensor;
    const int64_t shape[2] = {first, second};
    char expected[SHOWN_BYTES], found[SHOWN_BYTES];
    if (tensor->dims == dims && !memcmp(tensor->shape, shape, (size_t)dims * sizeof *shape))
        return STATUS_OK;
    shape_text(expected, sizeof expected, dims, shape);
    shape_text(found, sizeof found, tensor->dims, tensor->shape);
    return codec_fail(linear, part, "has shape %s (expected %s)", found, expected);
}

int codec_set_codes(const struct codec_linear *linear, int part, struct codec_codes layout, struct codec_codes *codes) {
    int64_t per_unit = layout.unit_bytes * 8 / layout.bits, shape[2] = {layout.shape[0], layout.shape[1]};
    shape[layout.axis] = (shape[layout.axis] + per_unit - 1) / per_unit;
    *codes = layout;
    codes->tensor = linear->parts[part];
    return codec_expect(linear, part, 2, shape[0], shape[1]);
}

static int sort_inputs(struct codec_linear *linear, int64_t groups) {
    int64_t *starts = calloc((size_t)groups + 1, sizeof *starts);
    TRY(status_allocated(starts));
    for (int64_t i = 0; i < linear->columns; i++)
        starts[linear->group_of[i] + 1]++;
    for (int64_t g = 0; g < groups; g++)
        starts[g + 1] += starts[g];
    for (int64_t i = 0; i < linear->columns; i++)
        linear->by_group[starts[linear->group_of[i]]++] = (int32_t)i;
    free(starts);
    return STATUS_OK;
}

int codec_set_order(struct codec_linear *linear, int part, int64_t groups) {
    const struct tensor_entry *entry = &linear->parts[part];
    bool is_in_order = true;
    TRY(codec_expect(linear, part, 1, linear->columns, 0));
    linear->group_of = malloc((size_t)linear->columns * sizeof *linear->group_of);
    linear->by_group = malloc((size_t)linear->columns * sizeof *linear->by_group);
    TRY(status_allocated(linear->group_of && linear->by_group));
    TRY(safetensors_read(entry->file, entry->tensor, 0, linear->columns, DTYPE_I32, linear->group_of));
    for (int64_t i = 0; i < linear->columns; i++) {
        if (linear->group_of[i] < 0 || linear->group_of[i] >= groups)
            return codec_fail(linear, part, "gives input %lld group %d, but there are %lld groups", (long long)i,
                              linear->group_of[i], (long long)groups);
        is_in_order &= linear->group_of[i] == i / linear->encoding.group;
    }
    TRY(sort_inputs(linear, groups));
    if (is_in_order) {
        free(linear->by_group);
        linear->by_group = NULL;
    }
    return STATUS_OK;
}

void codec_refuse(struct codec_config *config, const char *key, const char *word) {
    char shown_word[SHOWN_BYTES];
    if (!config->keys.status)
        config->keys.status = status_fail(STATUS_UNSUPPORTED, "%s: '%s' \"%s\" is not supported", config->where, key,
                                          shown(word, shown_word));
}

void codec_refuse_key(struct codec_config *config, const char *key) {
    const json_t *value = json_keys_find(&config->keys, key);
    bool is_empty = !value || json_is_false(value) || (json_is_object(value) && !json_object_size(value)) ||
                    (json_is_array(value) && !json_array_size(value));
    if (!is_empty && !config->keys.status)
        config->keys.status = status_fail(STATUS_UNSUPPORTED, "%s: '%s' is not supported", config->where, key);
}

int codec_set_scales(struct codec_linear *linear, int part, int64_t block_rows, int64_t block_columns) {
    const struct safetensor *tensor = linear->parts[part].tensor;
    linear->scales = part;
    linear->scale_rows = block_rows ? block_rows : linear->rows;
    linear->encoding.group = (int32_t)smaller(block_columns ? block_columns : linear->columns, linear->columns);
    linear->encoding.scale_type = tensor->dtype;
    linear->groups = (linear->columns + linear->encoding.group - 1) / linear->encoding.group;
    int64_t rows = (linear->rows + linear->scale_rows - 1) / linear->scale_rows;
    int64_t first = linear->is_turned ? linear->groups : rows, second = linear->is_turned ? rows : linear->groups;
    bool is_short = second == 1 && (tensor->dims == 1 || (!tensor->dims && first == 1));
    return codec_expect(linear, part, is_short ? tensor->dims : 2, first, second);
}

int codec_names_add(struct codec_config *config, struct codec_names *names, const char *key, const char *text,
                    bool is_expression, const json_t *value) {
    struct strbuf beginning = STRBUF_INIT;
    int status = STATUS_OK;
    if (names->count == MOST_NAMES)
        return status_fail(STATUS_INVALID, "%s: '%s' has more than %d entries", config->where, key, MOST_NAMES);
    struct codec_name *more = realloc(names->items, (names->count + 1) * sizeof *more);
    TRY(status_allocated(more));
    names->items = more;
    struct codec_name *name = &names->items[names->count];
    *name = (struct codec_name){.text = text, .value = value};
    if (is_expression) { /* re.match: what follows the match may be anything */
        strbuf_format(&beginning, "(?:%s).*", text);
        status = strbuf_status(&beginning);
        THEN(status, text_expression_open(key, strbuf_text(&beginning), false, &name->expression));
        if (status && status != STATUS_MEMORY)
            status = status_wrap(STATUS_INVALID, "%s", config->where);
    }
    strbuf_free(&beginning);
    names->count += !status;
    return status;
}

void codec_names_free(struct codec_names *names) {
    for (size_t i = 0; i < names->count; i++)
        text_expression_close(names->items[i].expression);
    free(names->items);
    *names = (struct codec_names){0};
}

int codec_names_find(const struct codec_config *config, const struct codec_names *names,
                     const struct codec_linear *linear, const struct codec_name **found) {
    char module[TENSOR_NAME_BYTES + sizeof weight_ending];
    snprintf(module, sizeof module, "%.*s", (int)(strlen(linear->name) - strlen(weight_ending)), linear->name);
    *found = NULL;
    for (size_t i = 0; i < names->count && !*found; i++) {
        const struct codec_name *name = &names->items[i];
        bool is_match = name->is_class || (!name->expression && !strcmp(name->text, module));
        int status = name->expression ? text_expression_match(name->expression, module, &is_match) : STATUS_OK;
        if (status)
            return status == STATUS_MEMORY ? status : status_wrap(STATUS_INVALID, "%s", config->where);
        *found = is_match ? name : NULL;
    }
    return STATUS_OK;
}

/* ---- the configuration ---- */

/* Reads the method's part of config.json; *codec is NULL when there is none. */
static int configure(struct codec_config *config, const struct codec **codec) {
    struct json_keys *keys = &config->keys;
    const char *key = json_keys_find(keys, "quantization_config") ? "quantization_config" : "compression_config";
    const json_t *object = json_keys_find(keys, key);
    *codec = NULL;
    if (!object || keys->status)
        return keys->status;
    if (!json_is_object(object))
        json_keys_refuse(keys, key, "an object");
    keys->object = object;
    bool is_bitsandbytes = json_keys_bool(keys, "load_in_4bit", false) || json_keys_bool(keys, "load_in_8bit", false);
    const char *method = json_keys_string(keys, "quant_method", is_bitsandbytes ? "bitsandbytes" : NULL);
    if (!keys->status && !method)
        json_keys_need(keys, "quant_method");
    for (int i = 0; i < CODEC_COUNT && !keys->status && !*codec; i++)
        *codec = strcmp(codecs[i]->method, method) ? NULL : codecs[i];
    if (*codec)
        (*codec)->configure(config);
    else
        codec_refuse(config, "quant_method", method ? method : "");
    return keys->status;
}

/* ---- the linears of the files ---- */

/* The tensors of a model while their linears are found. */
struct search {
    struct ckpt_tensors *tensors;
    struct codec_set *set;
    const char *method;
    bool *is_part; /* [tensors count] */
};

static bool has_type(const struct codec_part *part, const struct safetensor *tensor) {
    char type[32];
    snprintf(type, sizeof type, " %s ", tensor->type);
    return strstr(part->types, type);
}

static bool ends_with(const char *name, const char *ending) {
    size_t length = strlen(name), end = strlen(ending);
    return length > end && !strcmp(name + length - end, ending);
}

/* Takes the parts of the linear whose first part is entry `index`. */
static int add_linear(struct search *s, const struct codec *codec, size_t index) {
    const struct tensor_entry *entries = s->tensors->entries;
    const char *first = entries[index].tensor->name;
    int length = (int)(strlen(first) - strlen(codec->parts[0].ending));
    struct codec_linear *linear = &s->set->linears[s->set->count++];
    char name[2 * TENSOR_NAME_BYTES];
    *linear = (struct codec_linear){.codec = codec, .scale_rows = 1};
    if (length + (int)sizeof weight_ending > TENSOR_NAME_BYTES)
        return status_fail(STATUS_INVALID, "%s: the name of tensor '%.60s...' is too long", s->tensors->directory,
                           first);
    for (int p = 0; p < CODEC_PARTS && codec->parts[p].use; p++) {
        const struct codec_part *part = &codec->parts[p];
        snprintf(name, sizeof name, "%.*s%s", length, first, part->ending);
        const struct tensor_entry *entry = part->use == PART_SKIPPED ? NULL : tensors_find_exactly(s->tensors, name);
        if (!entry && part->use == PART_NEEDED)
            return status_fail(STATUS_INVALID, "%s: missing tensor %s beside %s", entries[index].file->path, name,
                               first);
        if (!entry)
            continue;
        linear->parts[p] = *entry;
        s->is_part[entry - entries] = true;
        if (!has_type(part, entry->tensor))
            return codec_fail(linear, p, "has dtype %s (expected%.*s)", entry->tensor->type,
                              (int)strlen(part->types) - 1, part->types);
    }
    snprintf(name, sizeof name, "%.*s%s", length, first, weight_ending);
    if (strcmp(codec->parts[0].ending, weight_ending) && ckpt_has_tensor(s->tensors, name))
        return status_fail(STATUS_INVALID, "%s: tensor '%s' is there beside '%s': a weight is plain or quantised",
                           entries[index].file->path, name, first);
    linear->name = strdup(name);
    return status_allocated(linear->name);
}

/* Refuses a part without its linear, and takes those that are skipped. */
static int check_part(struct search *s, size_t index) {
    const struct tensor_entry *entry = &s->tensors->entries[index];
    for (int i = 0; i < CODEC_COUNT; i++)
        for (int p = 0; p < CODEC_PARTS && codecs[i]->parts[p].use; p++) {
            const struct codec_part *part = &codecs[i]->parts[p];
            if (strcmp(codecs[i]->method, s->method) || !strcmp(part->ending, weight_ending) ||
                !ends_with(entry->tensor->name, part->ending))
                continue;
            s->is_part[index] = true;
            if (part->use != PART_SKIPPED)
                return status_fail(STATUS_INVALID, "%s: tensor '%s' belongs to a quantised weight, which is missing",
                                   entry->file->path, entry->tensor->name);
        }
    return STATUS_OK;
}

static int find_linears(struct search *s) {
    const struct ckpt_tensors *tensors = s->tensors;
    int status = STATUS_OK;
    for (size_t i = 0; i < tensors->count && !status; i++)
        for (int c = 0; c < CODEC_COUNT && !status; c++)
            if (!strcmp(codecs[c]->method, s->method) &&
                ends_with(tensors->entries[i].tensor->name, codecs[c]->parts[0].ending) &&
                has_type(&codecs[c]->parts[0], tensors->entries[i].tensor))
                status = add_linear(s, codecs[c], i);
    for (size_t i = 0; i < tensors->count && !status; i++)
        if (!s->is_part[i])
            status = check_part(s, i);
    if (!status && !s->set->count)
        status =
            status_fail(STATUS_INVALID, "%s: no linear is quantised, but config.json has 'quantization_config' (%s)",
                        tensors->directory, s->method);
    return status;
}

static int open_linears(const struct codec_config *config, struct codec_set *set) {
    int status = STATUS_OK;
    for (size_t i = 0; i < set->count && !status; i++) {
        struct codec_linear *linear = &set->linears[i];
        status = linear->codec->open(config, linear);
        if (!status && (linear->rows <= 0 || linear->columns <= 0 || linear->columns > INT32_MAX / 64 ||
                        linear->rows > INT64_MAX / 16 / linear->columns))
            status = codec_fail(linear, 0, "has an impossible size: %lld outputs, %lld inputs", (long long)linear->rows,
                                (long long)linear->columns);
    }
    if (!status && set->linears[0].codec->settle)
        status = set->linears[0].codec->settle(config, set->linears, set->count);
    return status;
}

/* Describes the quantisation for people and for notes. */
static void describe(struct codec_set *set) {
    struct ckpt_quantization *q = &set->quantization;
    const struct codec_linear *first = &set->linears[0];
    bool is_sorted = false;
    q->method = first->codec->method;
    q->bits = first->encoding.bits;
    q->group_size = first->encoding.group < first->columns || first->is_flat ? first->encoding.group : -1;
    for (size_t i = 0; i < set->count; i++) {
        const struct codec_linear *linear = &set->linears[i];
        int64_t group = linear->encoding.group < linear->columns || linear->is_flat ? linear->encoding.group : -1;
        q->bits = linear->encoding.bits == q->bits ? q->bits : 0;
        q->group_size = group == q->group_size ? group : 0;
        is_sorted |= linear->by_group != NULL;
    }
    int n = snprintf(q->text, sizeof q->text, "%s, ", q->method);
    n += q->bits ? snprintf(q->text + n, sizeof q->text - (size_t)n, "%d bits", q->bits)
                 : snprintf(q->text + n, sizeof q->text - (size_t)n, "mixed bits");
    if (q->group_size > 0)
        n += snprintf(q->text + n, sizeof q->text - (size_t)n, ", groups of %lld", (long long)q->group_size);
    snprintf(q->text + n, sizeof q->text - (size_t)n, "%s", is_sorted ? ", by act-order" : "");
}

/* ---- the weights as a source of tensors ---- */

static int read_weight(void *context, size_t index, int64_t first, size_t length, void *out) {
    const struct codec_set *set = context;
    const struct codec_linear *linear = &set->linears[index];
    int64_t width = (int64_t)dtype_bytes(set->dtype), at = first / width, end = (first + (int64_t)length) / width;
    char *to = out;
    if (first % width || (int64_t)length % width)
        return status_fail(STATUS_INVALID, "%s: a part of a value was asked for", linear->name);
    while (at < end) {
        int64_t row = at / linear->columns, column = at % linear->columns, left = end - at;
        bool is_whole = !column && left >= linear->columns;
        struct codec_rect rect = {row, is_whole ? left / linear->columns : 1, column, linear->columns - column};
        rect.columns = is_whole || left > rect.columns ? rect.columns : left;
        TRY(codec_read_values(linear, &rect, set->dtype, to));
        to += rect.rows * rect.columns * width;
        at += rect.rows * rect.columns;
    }
    return STATUS_OK;
}

static void close_set(void *context) {
    struct codec_set *set = context;
    for (size_t i = 0; set && i < set->count; i++) {
        free(set->linears[i].name);
        free(set->linears[i].group_of);
        free(set->linears[i].by_group);
    }
    if (set) {
        free(set->linears);
        free(set->parts);
    }
    free(set);
}

/* Puts the weights in the place of their parts. */
static int replace_parts(struct search *s) {
    static const struct tensor_source source = {.read = read_weight, .close = close_set};
    struct ckpt_tensors *tensors = s->tensors;
    struct codec_set *set = s->set;
    struct tensor_source own = source;
    struct safetensor *list = calloc(set->count, sizeof *list);
    struct safetensors **files = realloc(tensors->files, (tensors->file_count + 1) * sizeof *files);
    struct tensor_entry *entries = calloc(tensors->count + set->count + 1, sizeof *entries);
    size_t count = 0;
    tensors->files = files ? files : tensors->files;
    own.context = set;
    for (size_t i = 0; i < set->count && list; i++) {
        const struct codec_linear *linear = &set->linears[i];
        int64_t elements = linear->rows * linear->columns;
        list[i] = (struct safetensor){
            .name = linear->name, .dims = 2, .elements = elements, .shape = {linear->rows, linear->columns}};
    }
    int status =
        status_allocated(list && files && entries && (set->parts = calloc(tensors->count + 1, sizeof *set->parts)));
    THEN(status, safetensors_open_source(tensors->directory, list, set->count, &own, &files[tensors->file_count]));
    free(list);
    if (status) {
        free(entries);
        return status;
    }
    struct safetensors *file = set->file = files[tensors->file_count++];

    s->set = NULL; /* the file owns it */
    for (size_t i = 0; i < tensors->count; i++)
        if (s->is_part[i])
            set->parts[set->part_count++] = tensors->entries[i];
        else
            entries[count++] = tensors->entries[i];
    for (size_t i = 0; i < file->count; i++)
        entries[count++] = (struct tensor_entry){.file = file, .tensor = &file->tensors[i]};
    free(tensors->entries);
    tensors->entries = entries;
    tensors->count = count;
    tensors_sort(tensors);
    tensors->codecs = set;
    ckpt_set_encoded_type(tensors, DTYPE_F32);
    return STATUS_OK;
}

void ckpt_set_encoded_type(struct ckpt_tensors *tensors, enum dtype dtype) {
    for (size_t i = 0; tensors->codecs && i < tensors->codecs->count; i++) {
        struct safetensor *tensor = &tensors->codecs->file->tensors[i];
        tensor->dtype = tensors->codecs->dtype = dtype;
        tensor->type = safetensors_type_name(dtype);
        tensor->bytes = tensor->elements * (int64_t)dtype_bytes(dtype);
    }
}

/* Finds, checks and replaces the linears of a configuration. */
static int attach(struct ckpt_tensors *tensors, const struct codec_config *config, const char *method) {
    struct search s = {.tensors = tensors, .method = method, .is_part = calloc(tensors->count + 1, sizeof *s.is_part)};
    s.set = calloc(1, sizeof *s.set);
    if (s.set)
        s.set->linears = calloc(tensors->count + 1, sizeof *s.set->linears);
    int status = status_allocated(s.is_part && s.set && s.set->linears);
    THEN(status, find_linears(&s));
    THEN(status, open_linears(config, s.set));
    if (!status)
        describe(s.set);
    THEN(status, replace_parts(&s));
    if (!status && config->asks_for_activations)
        log_info("%s: quantised activations or caches are computed in the run's precision", config->where);
    close_set(s.set);
    free(s.is_part);
    return status;
}

int ckpt_names_codec(const char *config_text, const char *where, bool *is_there) {
    json_t *config = NULL;
    TRY(json_object_parse(where, 0, config_text, strlen(config_text), &config));
    *is_there = json_object_get(config, "quantization_config") || json_object_get(config, "compression_config");
    json_decref(config);
    return STATUS_OK;
}

int ckpt_attach_codec(struct ckpt_tensors *tensors, const char *config_text, const char *where) {
    struct codec_config config = {.where = where};
    const struct codec *codec = NULL;
    int status = json_keys_open(&config.keys, config_text, where, JSON_MUST_BE);
    THEN(status, configure(&config, &codec));
    THEN_IF(status, codec, attach(tensors, &config, codec->method));
    codec_names_free(&config.names);
    codec_names_free(&config.ignored);
    json_keys_close(&config.keys);
    return status;
}

const struct ckpt_quantization *ckpt_quantization(const struct ckpt_tensors *tensors) {
    static const struct ckpt_quantization plain = {0};
    const struct tensor_source *source = tensors->file_count ? tensors->files[0]->source : NULL;
    return tensors->codecs                  ? &tensors->codecs->quantization
           : source && source->quantization ? source->quantization
                                            : &plain;
}

/* ---- encodings of parameters ---- */

/* Finds the tensor of a rectangle, and the rectangle's place in it; NULL where there is none, or one of another shape.
 * *linear is NULL for a tensor without a codec. */
static const struct tensor_entry *find_tensor(const struct ckpt_encodings *e, const struct param *param,
                                              const struct param_rect *from, struct param_rect *rect,
                                              const struct codec_linear **linear) {
    int s = 0;
    while (s < param->slice_count - 1 && from->row >= param->slices[s].row + param->slices[s].rows)
        s++;
    const struct param_slice *slice = &param->slices[s];
    const struct tensor_entry *entry =
        tensors_find(e->tensors, e->table->files, "", slice->name, table_is_tied(e->table));
    *linear = entry ? codec_of(e->tensors, entry) : NULL;
    *rect = *from;
    rect->row += slice->file_start - slice->row;
    bool fits = from->row + from->rows <= slice->row + slice->rows &&
                (!*linear || ((*linear)->rows == slice->file_rows && (*linear)->columns == param->shape[1]));
    return fits ? entry : NULL;
}

bool ckpt_describe_encoding(const void *context, const struct param *param, const struct param_rect *rects, int count,
                            struct encoded_layout *layout) {
    const struct ckpt_encodings *e = context;
    int encoded = 0;
    *layout = (struct encoded_layout){.count = count};
    for (int i = 0; i < count && i < ENCODED_MAX_PARTS; i++) {
        struct encoded_part *part = &layout->parts[i];
        struct param_rect rect;
        const struct codec_linear *linear;
        const struct tensor_entry *entry = find_tensor(e, param, &rects[i], &rect, &linear);
        if (!entry)
            return false;
        const struct tensor_source *source = entry->file->source;
        *part = (struct encoded_part){.rows = rects[i].rows, .positions = rects[i].columns};
        if (linear)
            codec_describe(linear, &(const struct codec_rect){rect.row, rect.rows, rect.column, rect.columns}, part);
        else if (source && source->describe)
            source->describe(source->context, (size_t)entry->tensor->start, &rect, &part->encoding);
        encoded += part->encoding.codes != CODES_NONE;
    }
    return encoded > 0 && count <= ENCODED_MAX_PARTS;
}

int ckpt_read_encoded(const struct ckpt_encodings *e, int id, const struct param_rect *from,
                      const struct encoded_rows *to) {
    const struct param *param = &e->table->rows[id];
    struct param_rect rect;
    const struct codec_linear *linear;
    const struct tensor_entry *entry = find_tensor(e, param, from, &rect, &linear);
    const struct tensor_source *source = entry ? entry->file->source : NULL;
    if (entry && linear)
        return codec_read(linear, &(const struct codec_rect){rect.row, rect.rows, rect.column, rect.columns}, to);
    return source && source->read_encoded
               ? source->read_encoded(source->context, (size_t)entry->tensor->start, &rect, to)
               : status_fail(STATUS_INVALID, "%s: %s has no encoding", e->tensors->directory, param->name);
}
