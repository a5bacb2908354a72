/* Pages of keys and values: their sizes, and the place where a layer writes. */
#include "model-internal.h"

int64_t model_kv_page_elements(const struct model *model) {
    const struct model_widths *widths = &model->share.widths;
    return model->rank->ops->kv_page_elements(model->rank->device, (int)widths->query_groups, (int)widths->head,
                                              model->options.dtype);
}

static size_t kv_page_bytes(const struct model *model) {
    return (size_t)model_kv_page_elements(model) * dtype_bytes(model->options.dtype);
}

size_t model_kv_bytes(const struct model *model, int64_t page_count) {
    return (size_t)model_layers(model) * (size_t)page_count * kv_page_bytes(model);
}

struct kv_append model_kv_append(const struct model *model, const struct model_kv *kv, const int32_t *place,
                                 int64_t layer, int64_t rows) {
    int64_t page_elements = model_kv_page_elements(model);
    return (struct kv_append){
        .rows = rows,
        .kv_heads = (int)model->share.widths.query_groups,
        .head_size = (int)model->share.widths.head,
        .type = model->options.dtype,
        .pages = model_element(model, kv->pages, (layer - model_first_layer(model)) * kv->page_count * page_elements),
        .page_stride = page_elements,
        .place = place,
    };
}
