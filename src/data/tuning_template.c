/* Chat templates: how turns and instructions are put in words, and which text in Jinja means one of them. Texts of ours
 * may name special tokens, contents may not. */
#include "tuning-internal.h"

#include <stdlib.h>
#include <string.h>

const char *const tuning_template_names[] = {"auto", "chatml", "alpaca", "plain", NULL};

#define ALPACA_START          "Below is an instruction that describes a task"
#define ALPACA_END            "Write a response that appropriately completes the request.\n\n"
#define ALPACA_PREAMBLE       ALPACA_START ". " ALPACA_END
#define ALPACA_PREAMBLE_INPUT ALPACA_START ", paired with an input that provides further context. " ALPACA_END
/* The same in a string of Jinja. */
#define ALPACA_PREAMBLE_JINJA ALPACA_START ". Write a response that appropriately completes the request.\\n\\n"

struct jinja {
    const char *body;    /* the turns */
    const char *request; /* behind it: the head of the answer that is wanted, or "" */
};
static const struct jinja jinjas[TUNING_TEMPLATE_COUNT] = {
    [TUNING_TEMPLATE_AUTO] = {"", ""},
    [TUNING_TEMPLATE_CHATML] =
        {"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
         "'<|im_end|>' + '\\n' }}{% endfor %}",
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    [TUNING_TEMPLATE_ALPACA] =
        {"{% if messages[0]['role'] != 'system' %}{{ '" ALPACA_PREAMBLE_JINJA "' }}{% endif %}"
         "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
         "{% elif message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
         "{% else %}{{ '### Response:\\n' + message['content'] + eos_token }}"
         "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endif %}{% endfor %}",
         "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"},
    [TUNING_TEMPLATE_PLAIN] = {"{% for message in messages %}{% if message['role'] == 'assistant' %}"
                               "{{ message['content'] + eos_token }}{% else %}{{ message['content'] + '\\n' }}"
                               "{% endif %}{% endfor %}",
                               ""},
};

void tuning_template_write(enum tuning_template which, struct strbuf *text) {
    strbuf_add_text(text, jinjas[which].body);
    strbuf_add_text(text, jinjas[which].request);
}

/* ---- pieces ---- */

static int add_ours(struct tuning_pieces *pieces, const char *text) {
    return tuning_pieces_add(pieces, text, strlen(text), PIECE_SPECIAL);
}

/* Every turn ends with <|im_end|>, which is trained behind an answer. Behind the last answer stands the end-of-text as
 * well, where it is another token: who generates may know only that one. */
static int add_chatml(const struct tuning_format *format, const struct tuning_turn *turn,
                      struct tuning_pieces *pieces) {
    static const char *const heads[TUNING_ROLE_COUNT] = {"<|im_start|>system\n", "<|im_start|>user\n",
                                                         "<|im_start|>assistant\n"};
    unsigned trained = turn->role == TUNING_ROLE_ASSISTANT && turn->length > 0 ? PIECE_TRAINED : 0;
    int status = add_ours(pieces, heads[turn->role]);
    if (!status)
        status = tuning_pieces_add(pieces, turn->text, turn->length, trained);
    if (!status)
        status = tuning_pieces_add(pieces, "<|im_end|>", 10, PIECE_SPECIAL | trained);
    if (status)
        return status;
    if (turn->is_last && turn->role == TUNING_ROLE_ASSISTANT)
        return format->turn_end == format->eos ? STATUS_OK : tuning_pieces_add(pieces, NULL, 0, PIECE_END | trained);
    return add_ours(pieces, "\n");
}

static int add_alpaca(const struct tuning_turn *turn, struct tuning_pieces *pieces) {
    static const char *const heads[TUNING_ROLE_COUNT] = {"", "### Instruction:\n", "### Response:\n"};
    int status = STATUS_OK;
    if (turn->is_first && turn->role != TUNING_ROLE_SYSTEM)
        status = add_ours(pieces, ALPACA_PREAMBLE);
    if (!status)
        status = add_ours(pieces, heads[turn->role]);
    if (!status)
        status = turn->role == TUNING_ROLE_ASSISTANT ? tuning_pieces_add_answer(pieces, turn->text, turn->length)
                                                     : tuning_pieces_add(pieces, turn->text, turn->length, 0);
    if (!status && !(turn->is_last && turn->role == TUNING_ROLE_ASSISTANT))
        status = add_ours(pieces, "\n\n");
    return status;
}

static int add_plain(const struct tuning_turn *turn, struct tuning_pieces *pieces) {
    if (turn->role == TUNING_ROLE_ASSISTANT)
        return tuning_pieces_add_answer(pieces, turn->text, turn->length);
    int status = tuning_pieces_add(pieces, turn->text, turn->length, 0);
    return status ? status : add_ours(pieces, "\n");
}

int tuning_template_add_turn(const struct tuning_format *format, const struct tuning_turn *turn,
                             struct tuning_pieces *pieces) {
    switch (format->used) {
    case TUNING_TEMPLATE_CHATML:
        return add_chatml(format, turn, pieces);
    case TUNING_TEMPLATE_ALPACA:
        return add_alpaca(turn, pieces);
    default:
        return add_plain(turn, pieces);
    }
}

static int add_alpaca_input(const struct tuning_instruction *row, struct tuning_pieces *pieces) {
    int status = add_ours(pieces, ALPACA_PREAMBLE_INPUT "### Instruction:\n");
    if (!status)
        status = tuning_pieces_add(pieces, row->instruction, row->instruction_length, 0);
    if (!status)
        status = add_ours(pieces, "\n\n### Input:\n");
    if (!status)
        status = tuning_pieces_add(pieces, row->input, row->input_length, 0);
    if (!status)
        status = add_ours(pieces, "\n\n### Response:\n");
    return status ? status : tuning_pieces_add_answer(pieces, row->output, row->output_length);
}

/* Outside alpaca an instruction is a user's turn, its input the lines behind it. */
int tuning_template_add_instruction(const struct tuning_format *format, const struct tuning_instruction *row,
                                    struct tuning_pieces *pieces) {
    struct tuning_turn user = {TUNING_ROLE_USER, row->instruction, row->instruction_length, .is_first = true};
    struct tuning_turn answer = {TUNING_ROLE_ASSISTANT, row->output, row->output_length, .is_last = true};
    if (row->input_length > 0 && format->used == TUNING_TEMPLATE_ALPACA)
        return add_alpaca_input(row, pieces);
    if (row->input_length > 0) {
        strbuf_add(&pieces->joined, row->instruction, row->instruction_length);
        strbuf_add_char(&pieces->joined, '\n');
        strbuf_add(&pieces->joined, row->input, row->input_length);
        int status = strbuf_status(&pieces->joined);
        if (status)
            return status;
        user.text = pieces->joined.data;
        user.length = pieces->joined.length;
    }
    int status = tuning_template_add_turn(format, &user, pieces);
    return status ? status : tuning_template_add_turn(format, &answer, pieces);
}
