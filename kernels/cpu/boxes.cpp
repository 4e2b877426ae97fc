#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

/// Rows of a box that are transposed together: their elements of one column fill a cache line of the matrix.
constexpr std::int64_t kTransposedRows = 16;

/// A range of rows of a box.
struct BoxRows {
  MatrixBox box;
  std::int64_t begin = 0, end = 0;
};

std::vector<BoxRows> tasks_of(std::span<const MatrixBox> boxes) {
  std::vector<BoxRows> tasks;
  for (const MatrixBox& box : boxes) {
    const std::int64_t rows = align_up(rows_per_block(box.columns), kTransposedRows);
    for (std::int64_t begin = 0; begin < box.rows; begin += rows)
      tasks.push_back({box, begin, std::min(box.rows, begin + rows)});
  }
  return tasks;
}

}  // namespace

void CpuBackend::copy_boxes(Stream&, const CopyBoxes& a) {
  check_boxes(a);
  const std::vector<BoxRows> tasks = tasks_of(a.boxes);
  const std::int64_t stride = a.matrix.size(1);
  const bool to_matrix = a.to == CopyBoxes::To::matrix;
  const auto plain = [&](const MatrixBox& box, std::int64_t row) {
    float* packed = a.packed.as<float>() + box.begin + row * box.columns;
    float* matrix = a.matrix.as<float>() + (box.row + row) * stride + box.column;
    std::memcpy(to_matrix ? matrix : packed, to_matrix ? packed : matrix,
                static_cast<std::size_t>(box.columns) * sizeof(float));
  };
  const auto transposed = [&](const MatrixBox& box, std::int64_t begin, std::int64_t end) {
    float* packed = a.packed.as<float>() + box.begin;
    for (std::int64_t c = 0; c < box.columns; ++c) {
      float* matrix = a.matrix.as<float>() + (box.column + c) * stride + box.row;
      for (std::int64_t r = begin; r < end; ++r) {
        if (to_matrix) matrix[r] = packed[r * box.columns + c];
        else packed[r * box.columns + c] = matrix[r];
      }
    }
  };
  pool_.run(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, int) {
    const BoxRows& task = tasks[static_cast<std::size_t>(i)];
    if (!a.transposed) {
      for (std::int64_t row = task.begin; row < task.end; ++row) plain(task.box, row);
    } else {
      for (std::int64_t row = task.begin; row < task.end; row += kTransposedRows)
        transposed(task.box, row, std::min(task.end, row + kTransposedRows));
    }
  });
}

void CpuBackend::normalise(Stream& stream, const Normalise& a) {
  base::check(a.x.dtype == DType::f32, "normalise: fp32");
  const ArenaScope scope(stream.scratch());
  const std::int64_t n = a.x.numel(), blocks = norm_blocks(n);
  auto* sums = reinterpret_cast<double*>(
      stream.scratch().take_bytes(scratch_bytes(a, target_), MemoryTerm::workspace));
  for_each_block(pool_, n, kNormBlock, [&](std::int64_t begin, std::int64_t end) {
    sums[begin / kNormBlock] = vector_.square_sum(DType::f32, a.x.data + begin * 4, end - begin);
  });
  double total = 0;
  for (std::int64_t b = 0; b < blocks; ++b) total += sums[b];
  const auto factor = static_cast<float>(1 / (std::sqrt(total) + static_cast<double>(a.eps)));
  for_each_block(pool_, n, kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    vector_.scale(DType::f32, a.x.data + begin * 4, factor, a.x.data + begin * 4, end - begin);
  });
}

}  // namespace trainerd::kernels
