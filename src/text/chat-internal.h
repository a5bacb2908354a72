/* Words of templates, in a rendering and in Jinja. */
#ifndef CAMBIUM_TEXT_CHAT_INTERNAL_H
#define CAMBIUM_TEXT_CHAT_INTERNAL_H

#include "text/chat.h"

#define ALPACA_START          "Below is an instruction that describes a task"
#define ALPACA_END            "Write a response that appropriately completes the request.\n\n"
#define ALPACA_PREAMBLE       ALPACA_START ". " ALPACA_END
#define ALPACA_PREAMBLE_INPUT ALPACA_START ", paired with an input that provides further context. " ALPACA_END
#define ALPACA_REQUEST        "### Response:\n"
/* The same in a string of Jinja. */
#define ALPACA_PREAMBLE_JINJA ALPACA_START ". Write a response that appropriately completes the request.\\n\\n"

#endif
