/* A device channel for tests, like that of a library. Its calls run on a stream of its own, and other streams wait for
 * their events. It adds in another order at every call, and rounds bf16 at every addition. Every rank still gets the
 * same bits. */
#pragma once

#include "comm/comm.h"

/* Gives the group this channel; groups that are made of it later have it too. All ranks call it. The device stays open
 * until they are closed. */
int unordered_open(struct comm *group, struct device *device);
