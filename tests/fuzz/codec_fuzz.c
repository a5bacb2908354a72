/* Any text as a `quantization_config`, and any bytes as the parts of a linear. The first byte chooses the parts. The
 * rest of the first line is the configuration. What follows is the quant_state, where there is one, or else the bytes
 * of all parts, over and over. The model is refused in one line; or its weight can be read, or is refused in one line.
 */
#include "ckpt/codec.h"
#include "ckpt/exchange.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 16, COLUMNS = 24, PARTS = 6 };

#define PART(name, type, dtype, dims, rows, columns)                                                                   \
    { name, type, DTYPE_##dtype, dims, {rows, columns}, 0, 0, 0 }
#define STATE ".quant_state.bitsandbytes__"

static const struct safetensor forms[][PARTS] = {
    {PART("a.qweight", "I32", I32, 2, 3, 16), PART("a.qzeros", "I32", I32, 2, 3, 2),
     PART("a.scales", "F16", F16, 2, 3, 16)},
    {PART("a.qweight", "I32", I32, 2, 3, 16), PART("a.qzeros", "I32", I32, 2, 3, 2),
     PART("a.scales", "F16", F16, 2, 3, 16), PART("a.g_idx", "I32", I32, 1, 24, 0)},
    {PART("a.qweight", "I32", I32, 2, 24, 2), PART("a.qzeros", "I32", I32, 2, 3, 2),
     PART("a.scales", "F16", F16, 2, 3, 16)},
    {PART("a.weight_packed", "I32", I32, 2, 16, 3), PART("a.weight_scale", "BF16", BF16, 2, 16, 3),
     PART("a.weight_shape", "I64", I64, 1, 2, 0), PART("a.weight_zero_point", "I32", I32, 2, 2, 3)},
    {PART("a.weight", "I8", I8, 2, 16, 24), PART("a.weight_scale", "BF16", BF16, 2, 16, 1)},
    {PART("a.weight", "F8_E4M3", E4M3, 2, 16, 24), PART("a.weight_scale", "BF16", BF16, 2, 2, 3)},
    {PART("a.weight", "F8_E4M3", E4M3, 2, 16, 24), PART("a.weight_scale_inv", "F32", F32, 2, 2, 3)},
    {PART("a.weight", "F8_E4M3", E4M3, 2, 16, 24), PART("a.weight_scale", "F32", F32, 1, 1, 0)},
    {PART("a.weight", "U8", U8, 2, 192, 1), PART("a.weight.absmax", "F32", F32, 1, 6, 0),
     PART("a.weight.quant_map", "F32", F32, 1, 16, 0), PART("a.weight" STATE "nf4", "U8", U8, 1, 0, 0)},
    {PART("a.weight", "U8", U8, 2, 192, 1), PART("a.weight.absmax", "U8", U8, 1, 6, 0),
     PART("a.weight.quant_map", "F32", F32, 1, 16, 0), PART("a.weight" STATE "fp4", "U8", U8, 1, 0, 0),
     PART("a.weight.nested_absmax", "F32", F32, 1, 1, 0), PART("a.weight.nested_quant_map", "F32", F32, 1, 256, 0)},
    {PART("a.weight", "I8", I8, 2, 16, 24), PART("a.SCB", "F32", F32, 1, 16, 0)},
};
enum { FORMS = sizeof forms / sizeof *forms };

static struct {
    struct safetensor parts[PARTS];
    const uint8_t *rest;
    size_t rest_length;
} fuzz;

static void require(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "codec_fuzz: %s (%s)\n", what, status_text());
    abort();
}

static int read_part(void *context, size_t index, int64_t first, size_t length, void *out) {
    const struct safetensor *part = &fuzz.parts[index];
    bool is_map = strstr(part->name, ".quant_map");
    const float *table = is_map ? encoded_table(strstr(fuzz.parts[3].name, "nf4") ? CODES_NF4 : CODES_FP4) : NULL;
    (void)context;
    require(first >= 0 && first + (int64_t)length <= part->bytes, "read outside a tensor");
    for (size_t i = 0; i < length; i++) {
        size_t at = (size_t)first + i;
        uint8_t byte = !fuzz.rest_length ? 0 : fuzz.rest[at % fuzz.rest_length];
        ((uint8_t *)out)[i] = is_map ? ((const uint8_t *)table)[at % 64] : byte;
    }
    return STATUS_OK;
}

static void close_parts(void *context) {
    (void)context;
}

static void check_refusal(void) {
    require(*status_text() && !strchr(status_text(), '\n'), "refused without one line that says why");
}

/* Opens the parts of a form. */
static struct ckpt_tensors *open_parts(const struct safetensor *form) {
    static const struct tensor_source source = {.read = read_part, .close = close_parts};
    struct ckpt_tensors *tensors;
    size_t count = 0;
    for (; count < PARTS && form[count].name; count++) {
        struct safetensor *part = &fuzz.parts[count];
        *part = form[count];
        if (strstr(part->name, STATE))
            part->shape[0] = (int64_t)fuzz.rest_length;
        part->elements = part->shape[0] * (part->dims > 1 ? part->shape[1] : 1);
        part->bytes = part->elements * safetensors_type_bytes(part->type);
    }
    require(!ckpt_open_source("model", fuzz.parts, count, &source, &tensors), "not opened");
    return tensors;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static float values[ROWS * COLUMNS];
    struct ckpt_tensors *tensors;
    struct strbuf config = STRBUF_INIT;
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;
    if (!line)
        return 0;
    log_quiet(true);
    fuzz.rest = line + 1;
    fuzz.rest_length = size - (size_t)(fuzz.rest - data);
    strbuf_add_text(&config, "{\"quantization_config\":");
    strbuf_add(&config, data + 1, line > data ? (size_t)(line - data) - 1 : 0);
    strbuf_add_text(&config, "}");
    tensors = open_parts(forms[(uint8_t)(*data - 'a') % FORMS]);
    status_fail(STATUS_OK, "%s", "");
    if (strlen(strbuf_text(&config)) == config.length && ckpt_attach_codec(tensors, strbuf_text(&config), "file"))
        check_refusal();
    else if (ckpt_quantization(tensors)->method && ckpt_find_tensor(tensors, "a.weight")->elements <= ROWS * COLUMNS &&
             ckpt_read_numbers(tensors, "a.weight", 0, ckpt_find_tensor(tensors, "a.weight")->elements, DTYPE_F32,
                               values))
        check_refusal();
    ckpt_close(tensors);
    strbuf_free(&config);
    return 0;
}
