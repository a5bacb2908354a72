/* The methods, one row each: the number, the name on the command line, and the method itself (a struct peft_method of
 * method-internal.h, defined in the method's file). Options and errors list them in this order; a new one goes last. */
#pragma once

#define PEFT_METHODS(ROW)                                                                                              \
    ROW(PEFT_LORA, "lora", peft_lora)                                                                                  \
    ROW(PEFT_IA3, "ia3", peft_ia3)                                                                                     \
    ROW(PEFT_ADAPTER, "adapter", peft_bottleneck)                                                                      \
    ROW(PEFT_PROMPT, "prompt", peft_prompt)                                                                            \
    ROW(PEFT_PTUNING, "ptuning", peft_ptuning)                                                                         \
    ROW(PEFT_PREFIX, "prefix", peft_prefix)

/* The method that trains when no option names one. */
#define PEFT_DEFAULT_METHOD "lora"
