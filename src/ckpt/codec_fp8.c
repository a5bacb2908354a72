/* FP8 weights: E4M3 with a scale for each block, each output or each tensor. A block's scale multiplies, in spite of
 * its name; blocks at the edges may be cut. Activations are not rounded, so their scales are skipped. */
#include "codec-internal.h"

enum { WEIGHT, BLOCK_SCALES, SCALES };

static void configure(struct codec_config *config) {
    struct json_keys *keys = &config->keys;
    const json_t *block = json_keys_find(keys, "weight_block_size");
    for (size_t i = 0; i < 2 && block; i++) {
        config->block[i] = json_integer_value(json_array_get(block, i));
        if (json_array_size(block) != 2 || config->block[i] < 1 || config->block[i] > INT32_MAX)
            json_keys_refuse(keys, "weight_block_size", "two sizes");
    }
    const char *number = json_keys_string(keys, "fmt", "e4m3"), *scale = json_keys_string(keys, "scale_fmt", "float");
    const char *scheme = json_keys_string(keys, "activation_scheme", "dynamic");
    if (!keys->status && strcmp(number, "e4m3") && strcmp(number, "float8_e4m3fn"))
        codec_refuse(config, "fmt", number);
    if (!keys->status && strcmp(scale, "float") && strcmp(scale, "float32"))
        codec_refuse(config, "scale_fmt", scale);
    if (!keys->status && strcmp(scheme, "dynamic") && strcmp(scheme, "static"))
        codec_refuse(config, "activation_scheme", scheme);
    config->asks_for_activations = true;
}

static int open_linear(const struct codec_config *config, struct codec_linear *linear) {
    const struct safetensor *weight = linear->parts[WEIGHT].tensor;
    int part = linear->parts[BLOCK_SCALES].tensor ? BLOCK_SCALES : SCALES;
    const char *path = linear->parts[WEIGHT].file->path;
    if (weight->dims != 2 || weight->shape[0] <= 0 || weight->shape[1] <= 0 || weight->shape[1] > INT32_MAX)
        return codec_fail(linear, WEIGHT, "of FP8 numbers is no %s", "matrix");
    if (!linear->parts[part].tensor || (config->block[0] && part == SCALES))
        return status_fail(STATUS_INVALID, "%s: missing tensor %s%s beside %s", path, weight->name,
                           config->block[0] ? "_scale_inv" : "_scale", weight->name);
    if (part == BLOCK_SCALES && linear->parts[SCALES].tensor)
        return codec_fail(linear, SCALES, "is there beside %s_scale_inv: one of the two is wrong", weight->name);
    linear->rows = weight->shape[0];
    linear->columns = weight->shape[1];
    linear->encoding = (struct encoding){.codes = CODES_E4M3, .bits = 8};
    TRY(codec_set_codes(
        linear, WEIGHT,
        (struct codec_codes){.shape = {linear->rows, linear->columns}, .bits = 8, .unit_bytes = 1, .axis = 1},
        &linear->codes));
    bool is_one = linear->parts[part].tensor->elements == 1;
    return config->block[0] ? codec_set_scales(linear, part, config->block[0], config->block[1])
                            : codec_set_scales(linear, part, is_one ? 0 : 1, 0);
}

const struct codec codec_fp8 = {
    .method = "fp8",
    .parts = {[WEIGHT] = {".weight", " F8_E4M3 ", PART_NEEDED},
              [BLOCK_SCALES] = {".weight_scale_inv", " F32 BF16 F16 ", PART_OPTIONAL},
              [SCALES] = {".weight_scale", " F32 BF16 F16 ", PART_OPTIONAL},
              {".input_scale", "", PART_SKIPPED},
              {".activation_scale", "", PART_SKIPPED},
              {".k_scale", "", PART_SKIPPED},
              {".v_scale", "", PART_SKIPPED}},
    .configure = configure,
    .open = open_linear,
};
