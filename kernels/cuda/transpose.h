/* Tiles of the kernel that transposes. */
#pragma once

enum { TRANSPOSE_TILE = 32, TRANSPOSE_ROWS = 8 /* of a tile at a time: one warp each */ };
