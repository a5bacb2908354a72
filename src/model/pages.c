/* Pages of keys and values: their sizes, and the place where a layer writes. */
#include "model-internal.h"

static int64_t page_elements_of(const struct base *base) {
    const struct model_widths *widths = &base->part.widths;
    return base->rank->ops->kv_page_elements(base->rank->device, (int)widths->query_groups, (int)widths->head,
                                             base->options.dtype);
}

size_t model_kv_bytes(const struct base *base, int64_t page_count) {
    return (size_t)base_layers(base) * (size_t)page_count * (size_t)page_elements_of(base) *
           dtype_bytes(base->options.dtype);
}

struct kv_append model_kv_append(const struct inference_runner *inference, const int32_t *place, int64_t layer,
                                 int64_t rows) {
    const struct runner *run = &inference->run;
    const struct model_kv *kv = &inference->kv;
    int64_t page_elements = page_elements_of(run->base);
    return (struct kv_append){
        .rows = rows,
        .kv_heads = (int)run->base->part.widths.query_groups,
        .head_size = (int)run->base->part.widths.head,
        .type = run->base->options.dtype,
        .pages = model_element(run, kv->pages, (layer - base_first_layer(run->base)) * kv->page_count * page_elements),
        .page_stride = page_elements,
        .place = place,
    };
}
