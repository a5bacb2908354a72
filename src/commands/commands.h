/* The subcommands, one file each. A command parses options, calls a job or another room, and prints results to standard
 * output; everything else goes to standard error. Each returns the process's exit status: 0 for success, 1 for a
 * failure at run time, 2 for bad usage. */
#pragma once

#include <stddef.h>

/* In each, argv[0] is the first word after the command's name. */
int command_tokenizer(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_detokenize(int argc, char **argv);
int command_preprocess(int argc, char **argv);
int command_data(int argc, char **argv);
int command_pretrain(int argc, char **argv);
int command_finetune(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_grammar(int argc, char **argv);
int command_score(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_chat(int argc, char **argv);
int command_serve(int argc, char **argv);
int command_adapter(int argc, char **argv);
int command_merge(int argc, char **argv);
int command_convert(int argc, char **argv);
int command_quantize(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_bench(int argc, char **argv);
