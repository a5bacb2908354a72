/* Between the files of clusters. */
#pragma once

#include "planner/cluster.h"

/* cluster_speeds.c: reads cluster->speed_texts, and adds the speeds as the list of a cluster file. STATUS_USAGE for a
 * text that is no speed, STATUS_MEMORY. */
int cluster_read_speeds(const char *name, struct cluster *cluster);
void cluster_write_speeds(const struct cluster *cluster, struct strbuf *out);
