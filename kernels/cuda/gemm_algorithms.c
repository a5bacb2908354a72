/* Algorithms of cuBLASLt as texts, which outlive the process: the library's documentation allows to keep the bytes of
 * one for use with the same version of the library. */
#include "cuda/gemm-internal.h"

#include <inttypes.h>

/* The types that a factor or C may have. */
static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_E4M3, DTYPE_E5M2};

#define FORM_TEXT                                                                                                      \
    "%" PRId64 " x %" PRId64 " x %" PRId64 ", strides %" PRId64 " %" PRId64 " %" PRId64                                \
    ", transposed %d %d, types %s %s %s, aligned %d %d %d, epilogue %d, tf32 %d, one pass %d, fast %d"
#define FORM_SCAN                                                                                                      \
    "%" SCNd64 " x %" SCNd64 " x %" SCNd64 ", strides %" SCNd64 " %" SCNd64 " %" SCNd64                                \
    ", transposed %hhu %hhu, types %7[a-z0-9] %7[a-z0-9] %7[a-z0-9], aligned %hhu %hhu %hhu, epilogue %hhu, "          \
    "tf32 %hhu, one pass %hhu, fast %hhu"
enum { FORM_NUMBERS = 18 };

static void write_form(const struct gemm_form *form, char text[DEVICE_PRODUCT_BYTES]) {
    snprintf(text, DEVICE_PRODUCT_BYTES, FORM_TEXT, form->m, form->n, form->k, form->lda, form->ldb, form->ldc,
             form->a_transposed, form->b_transposed, dtype_name((enum dtype)form->type),
             dtype_name((enum dtype)form->b_type), dtype_name((enum dtype)form->c_type), form->a_alignment,
             form->b_alignment, form->c_alignment, form->epilogue, form->is_tf32, form->is_one_pass, form->is_fast);
}

static uint8_t find_type(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(name, dtype_name(types[i])))
            return (uint8_t)types[i];
    return (uint8_t)DTYPE_F32;
}

/* Reads a form. A text that is not as write_form makes it is refused. */
static bool read_form(const char *text, struct gemm_form *form) {
    char type[3][8] = {"", "", ""}, again[DEVICE_PRODUCT_BYTES];
    *form = (struct gemm_form){0};
    if (sscanf(text, FORM_SCAN, &form->m, &form->n, &form->k, &form->lda, &form->ldb, &form->ldc, &form->a_transposed,
               &form->b_transposed, type[0], type[1], type[2], &form->a_alignment, &form->b_alignment,
               &form->c_alignment, &form->epilogue, &form->is_tf32, &form->is_one_pass, &form->is_fast) != FORM_NUMBERS)
        return false;
    form->type = find_type(type[0]);
    form->b_type = find_type(type[1]);
    form->c_type = find_type(type[2]);
    write_form(form, again);
    return !strcmp(text, again) && form->m > 0 && form->n > 0 && form->k > 0;
}

static void write_algorithm(const struct cublaslt_algorithm *algorithm, char text[DEVICE_ALGORITHM_BYTES]) {
    for (size_t i = 0; i < sizeof algorithm->data / sizeof *algorithm->data; i++)
        snprintf(text + 16 * i, DEVICE_ALGORITHM_BYTES - 16 * i, "%016" PRIx64, algorithm->data[i]);
}

static bool read_algorithm(const char *text, struct cublaslt_algorithm *algorithm) {
    if (strlen(text) != DEVICE_ALGORITHM_BYTES - 1 || strspn(text, "0123456789abcdef") != DEVICE_ALGORITHM_BYTES - 1)
        return false;
    for (size_t i = 0; i < sizeof algorithm->data / sizeof *algorithm->data; i++)
        if (sscanf(text + 16 * i, "%16" SCNx64, &algorithm->data[i]) != 1)
            return false;
    return true;
}

const struct gemm_choice *gemm_choices_find(const struct gemm_choices *choices, const struct gemm_form *form) {
    for (int i = 0; i < choices->count; i++)
        if (!memcmp(&choices->items[i].form, form, sizeof *form))
            return &choices->items[i];
    return NULL;
}

int gemm_choices_add(struct gemm_choices *choices, const struct gemm_choice *choice) {
    struct gemm_choice *items = realloc(choices->items, (size_t)(choices->count + 1) * sizeof *items);
    TRY(status_allocated(items));
    choices->items = items;
    items[choices->count++] = *choice;
    return STATUS_OK;
}

void gemm_choices_free(struct gemm_choices *choices) {
    free(choices->items);
    *choices = (struct gemm_choices){0};
}

void gemm_choice_write(const struct gemm_choice *choice, struct device_algorithm *text) {
    write_form(&choice->form, text->product);
    write_algorithm(&choice->algorithm, text->algorithm);
    text->seconds = choice->seconds;
    text->first_seconds = choice->first_seconds;
}

int gemm_choice_read(const struct device_algorithm *text, struct gemm_choice *choice) {
    *choice = (struct gemm_choice){.seconds = text->seconds, .first_seconds = text->first_seconds};
    if (!read_form(text->product, &choice->form))
        return status_fail(STATUS_INVALID, "'%s' is not a product", text->product);
    if (!read_algorithm(text->algorithm, &choice->algorithm))
        return status_fail(STATUS_INVALID, "'%s' has no algorithm of %d hexadecimal digits", text->product,
                           DEVICE_ALGORITHM_BYTES - 1);
    return STATUS_OK;
}
