#pragma once

#include <cuda_runtime.h>

namespace trainerd::kernels::cuda {

/// The tile of a matrix of outputs that comes at place `index`: by groups of rows of tiles, whose columns
/// follow each other, so that the tiles that run at once read few rows and columns.
struct TilePlace {
  int row, column;
};
__device__ constexpr TilePlace place_of_tile(int index, int row_tiles, int column_tiles) {
  constexpr int kRowTiles = 12;
  const int group = index / (kRowTiles * column_tiles), in_group = index % (kRowTiles * column_tiles),
            left = row_tiles - group * kRowTiles, height = left < kRowTiles ? left : kRowTiles;
  return {group * kRowTiles + in_group % height, in_group / height};
}

}  // namespace trainerd::kernels::cuda
