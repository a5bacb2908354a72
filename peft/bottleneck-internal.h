/* Between bottleneck adapters (bottleneck.c) and their configuration (bottleneck_format.c). */
#ifndef CAMBIUM_PEFT_BOTTLENECK_INTERNAL_H
#define CAMBIUM_PEFT_BOTTLENECK_INTERNAL_H

extern const struct peft_format bottleneck_format;

#endif
