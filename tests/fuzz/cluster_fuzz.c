/* Any bytes as a cluster file: an error, or constants that are read back from the file that is written. */
#include "planner/cluster.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cluster cluster, again;
    struct strbuf text = STRBUF_INIT;
    char *copy = malloc(size + 1);
    memcpy(copy, data, size);
    copy[size] = 0;
    int status = cluster_open_text("fuzz", copy, size, &cluster);
    free(copy);
    if (status)
        return 0;
    bool is_text = strlen(strbuf_text(&cluster.text)) == cluster.text.length;
    if (cluster_write(&cluster, "fuzz", &text) || !is_text)
        exit(1);
    for (int i = 0; i < CLUSTER_CONSTANTS; i++)
        if (cluster.achieved[i].value < 0 || cluster.achieved[i].low > cluster.achieved[i].high)
            abort();
    if (!cluster_open_text("again", strbuf_text(&text), text.length, &again)) {
        for (int i = 0; i < CLUSTER_CONSTANTS; i++)
            if (fabs(cluster.achieved[i].value - again.achieved[i].value) > 1e-4 * cluster.achieved[i].value)
                abort();
        cluster_close(&again);
    }
    strbuf_free(&text);
    cluster_close(&cluster);
    return 0;
}
