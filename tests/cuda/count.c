/* Counts by kernel: bytes, sectors, passes through shared memory, instructions. */
#include "cuda/warp.h"

#include <stdio.h>

enum { SECTOR = 32, BANKS = 32 };

/* Different sectors: an aligned access stays in one. They go to a table of twice the size; no sector is 0. */
static uint64_t sectors(const uint64_t *addresses, uint32_t mask) {
    uint64_t table[2 * LANES] = {0}, count = 0, last = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        uint64_t sector = addresses[__builtin_ctz(rest)] / SECTOR, at = sector * 0x9E3779B97F4A7C15u >> 58;
        if (sector == last) {
            continue;
        }
        while (table[at] && table[at] != sector) {
            at = (at + 1) % (2 * LANES);
        }
        count += !table[at];
        table[at] = last = sector;
    }
    return count;
}

void count_global(struct warp *warp, const uint64_t *addresses, uint32_t mask, uint32_t bytes, bool is_store) {
    struct counts *counts = warp->block->counts;
    uint64_t total = (uint64_t)__builtin_popcount(mask) * bytes, moved = sectors(addresses, mask);
    uint64_t least = (total + SECTOR - 1) / SECTOR;
    counts->least_sectors += least < moved ? least : moved; /* lanes may share a sector's bytes */
    *(is_store ? &counts->store_bytes : &counts->load_bytes) += total;
    *(is_store ? &counts->store_sectors : &counts->load_sectors) += moved;
}

/* How often the banks are used in turn for some lanes: a bank serves one word at a time. */
static uint32_t passes(const uint64_t *offsets, uint32_t mask, uint32_t bytes) {
    uint64_t words[BANKS][LANES];
    uint8_t count[BANKS] = {0}, most = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        uint64_t offset = offsets[__builtin_ctz(rest)];
        for (uint64_t word = offset / 4; word <= (offset + bytes - 1) / 4; word++) {
            uint64_t bank = word % BANKS;
            uint8_t n = count[bank];
            while (n > 0 && words[bank][n - 1] != word) {
                n--;
            }
            if (n == 0 && count[bank] < LANES) {
                words[bank][count[bank]++] = word;
                most = count[bank] > most ? count[bank] : most;
            }
        }
    }
    return most;
}

void count_shared(struct warp *warp, const uint64_t *offsets, uint32_t mask, uint32_t bytes) {
    struct counts *counts = warp->block->counts;
    uint32_t together = bytes == 16 ? LANES / 4 : bytes == 8 ? LANES / 2 : LANES; /* lanes that 128 bytes serve */
    for (uint32_t first = 0; first < LANES; first += together) {
        uint32_t part = mask & (uint32_t)(((1ull << together) - 1) << first);
        if (part) {
            counts->shared_passes += passes(offsets, part, bytes);
            counts->least_shared_passes++;
        }
    }
}

int counts_write(const struct machine *machine, const char *path) {
    FILE *file = fopen(path, "a");
    if (!file) {
        return -1;
    }
    for (const struct counts *c = machine->counts; c; c = c->next) {
        fprintf(file,
                "{\"kernel\": \"%s\", \"launches\": %llu, \"blocks\": %llu, \"warp_instructions\": %llu, "
                "\"thread_instructions\": %llu, \"load_bytes\": %llu, \"store_bytes\": %llu, \"load_sectors\": %llu, "
                "\"store_sectors\": %llu, \"moved_bytes\": %llu, \"least_sectors\": %llu, \"shared_passes\": %llu, "
                "\"least_shared_passes\": %llu, \"barriers\": %llu, \"products\": %llu}\n",
                c->name, (unsigned long long)c->launches, (unsigned long long)c->blocks,
                (unsigned long long)c->warp_instructions, (unsigned long long)c->thread_instructions,
                (unsigned long long)c->load_bytes, (unsigned long long)c->store_bytes,
                (unsigned long long)c->load_sectors, (unsigned long long)c->store_sectors,
                (unsigned long long)c->moved_bytes, (unsigned long long)c->least_sectors,
                (unsigned long long)c->shared_passes, (unsigned long long)c->least_shared_passes,
                (unsigned long long)c->barriers, (unsigned long long)c->products);
    }
    return fclose(file) ? -1 : 0;
}
