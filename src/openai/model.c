#include "model.h"

int openai_model_describe(struct openai_model *model, const struct engine *engine, const struct tokenizer *tokenizer) {
    char digest[PEFT_DIGEST_BYTES];
    TRY(peft_base_digest(engine_directory(engine), digest));
    snprintf(model->fingerprint, sizeof model->fingerprint, "b%.12s", digest);
    model->created = (int64_t)clock_wall_seconds();
    model->max_model_len = engine_max_positions(engine);
    model->vocab = engine_config(engine)->vocab_size;
    model->ends = engine_text_ends(engine, tokenizer);
    model->precision = engine_precision(engine);
    model->quantization = engine_quantization(engine);
    model->tokenizer = tokenizer;
    model->room = prompt_room_of(tokenizer, model->max_model_len);
    return STATUS_OK;
}
