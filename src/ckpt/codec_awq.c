/* AWQ, its layout for `gemm`: a word has eight neighbouring outputs, whose order is fixed; zeros are as they are. */
#include "codec-internal.h"

#include <strings.h>

enum { QWEIGHT, QZEROS, SCALES, BITS = 4 };

static void configure(struct codec_config *config) {
    struct json_keys *keys = &config->keys;
    const char *bits = json_keys_find(keys, "w_bit") ? "w_bit" : "bits";
    const char *group = json_keys_find(keys, "q_group_size") ? "q_group_size" : "group_size";
    config->bits = json_keys_integer(keys, bits, BITS, 1, 32);
    config->group = json_keys_integer(keys, group, 128, -1, INT32_MAX);
    config->group = config->group < 0 ? 0 : config->group;
    const char *version = json_keys_string(keys, "version", "gemm");
    json_keys_bool(keys, "zero_point", true);
    if (!keys->status && config->bits != BITS)
        json_keys_refuse(keys, bits, "4 (%lld bits are not supported)", (long long)config->bits);
    if (!keys->status && strcasecmp(version, "gemm"))
        codec_refuse(config, "version", version);
}

static int open_linear(const struct codec_config *config, struct codec_linear *linear) {
    static const uint8_t places[] = {0, 4, 1, 5, 2, 6, 3, 7}; /* of outputs in a word */
    const struct safetensor *weight = linear->parts[QWEIGHT].tensor, *scales = linear->parts[SCALES].tensor;
    if (weight->dims != 2 || scales->dims != 2)
        return codec_fail(linear, weight->dims != 2 ? QWEIGHT : SCALES, "does not have %d dimensions", 2);
    linear->is_turned = true;
    linear->rows = scales->shape[1];
    linear->columns = weight->shape[0];
    if (linear->rows <= 0 || linear->columns <= 0 || linear->columns > INT32_MAX)
        return codec_fail(linear, QWEIGHT, "is %s", "empty");
    linear->encoding = (struct encoding){.codes = CODES_INTEGERS, .bits = BITS, .shift = ENCODED_ZEROS};
    struct codec_codes codes = {
        .shape = {linear->columns, linear->rows}, .bits = BITS, .unit_bytes = 4, .axis = 1, .places = places};
    TRY(codec_set_codes(linear, QWEIGHT, codes, &linear->codes));
    TRY(codec_set_scales(linear, SCALES, 1, config->group));
    codes.shape[0] = linear->groups;
    return codec_set_codes(linear, QZEROS, codes, &linear->zeros);
}

const struct codec codec_awq = {
    .method = "awq",
    .parts = {[QWEIGHT] = {".qweight", " I32 ", PART_NEEDED},
              [QZEROS] = {".qzeros", " I32 ", PART_NEEDED},
              [SCALES] = {".scales", " F16 BF16 F32 ", PART_NEEDED}},
    .configure = configure,
    .open = open_linear,
};
