/* The chat template of rows, and its request. */
#include "tuning-internal.h"

int tuning_choose_template(struct tuning_format *format, const char *otherwise) {
    int status = STATUS_OK;
    if (format->used)
        return STATUS_OK;
    if (format->named)
        format->used = chat_template_keep(format->named);
    else if (format->tokenizer_files)
        status = chat_template_of_tokenizer(format->tokenizer_files, &format->used);
    THEN_IF(status, !format->used && otherwise, chat_template_open_named(otherwise, &format->used));
    if (!status && !format->used)
        status = status_fail(STATUS_UNSUPPORTED,
                             "messages need a chat template, and the tokenizer has none: name " CHAT_TEMPLATE_CHOICES
                             " by tuning.template");
    return status;
}

struct chat_request tuning_request(const struct tuning_format *format) {
    return (struct chat_request){.tokenizer = format->tokenizer,
                                 .eos = format->eos,
                                 .ends = format->ends,
                                 .end_count = format->end_count,
                                 .seconds = format->template_timeout};
}
