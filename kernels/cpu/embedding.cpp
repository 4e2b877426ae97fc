#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

/// Largest id, as unsigned: a negative id is larger than any vocabulary.
std::uint32_t largest_id(const Tensor& ids) {
  std::uint32_t largest = 0;
  for (const std::int32_t id : std::span(ids.as<std::int32_t>(), static_cast<std::size_t>(ids.numel())))
    largest = std::max(largest, static_cast<std::uint32_t>(id));
  return largest;
}

}  // namespace

void CpuBackend::check_ids(Stream&, const CheckIds& a) {
  base::check(a.flag.dtype == DType::f32 && a.flag.numel() == 1, "check ids: one flag in fp32");
  for (const Tensor* ids : {&a.tokens_T, &a.targets_T})
    if (std::cmp_greater_equal(largest_id(*ids), a.vocab)) *a.flag.as<float>() = a.flag_value;
}

void CpuBackend::embedding_forward(Stream&, const EmbeddingForward& a) {
  const std::int64_t tokens = a.out_TD.size(0), d = a.out_TD.size(1);
  base::check(a.tokens_T.numel() == tokens && a.table_VD.size(1) == d,
              "embedding: shapes of tokens, table and output");
  check_weights(a.out_TD.dtype, a.table_VD.dtype);
  base::check(!a.positions_table_SD.defined() || a.positions_table_SD.dtype == a.table_VD.dtype,
              "embedding: both tables have one dtype");
  for_each_block(pool_, tokens, rows_per_block(d),
                 [&](std::int64_t begin, std::int64_t end) { vector_.embedding_forward(a, begin, end); });
}

void CpuBackend::embedding_backward(Stream& stream, const EmbeddingBackward& a) {
  const std::int64_t tokens = a.rows_T.numel(), held = a.dtable_VD.size(0);
  check_not_mixed(a.dout_TD.dtype, a.dtable_VD.dtype);
  base::check(a.dout_TD.size(0) == tokens && a.dout_TD.size(1) == a.dtable_VD.size(1),
              "embedding: shapes of rows, dout and dtable");
  const ArenaScope scope(stream.scratch());
  auto* end_of = reinterpret_cast<std::int32_t*>(
      stream.scratch().take_bytes(scratch_bytes(a, target_), MemoryTerm::workspace));
  std::int32_t* order = end_of + held;

  // Counting sort of the tokens by table row. It is stable, so each row's tokens stay in rising order.
  const std::int32_t* ids = a.rows_T.as<std::int32_t>();
  const auto row_of = [&](std::int64_t t) {
    const std::int64_t row = ids[t] - a.first_row;
    return row >= 0 && row < held ? row : -1;
  };
  if (held > 0) std::memset(end_of, 0, static_cast<std::size_t>(held) * sizeof(std::int32_t));
  for (std::int64_t t = 0; t < tokens; ++t)
    if (const std::int64_t row = row_of(t); row >= 0) ++end_of[row];
  std::int32_t begin_of_row = 0;
  for (std::int64_t row = 0; row < held; ++row) {
    const std::int32_t count = end_of[row];
    end_of[row] = begin_of_row;
    begin_of_row += count;
  }
  for (std::int64_t t = 0; t < tokens; ++t)
    if (const std::int64_t row = row_of(t); row >= 0) order[end_of[row]++] = static_cast<std::int32_t>(t);

  // Many more blocks than threads, because tokens may concentrate on few rows. No sum crosses a row.
  const std::int64_t rows = std::max<std::int64_t>(1, held / 512);
  for_each_block(pool_, held, rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t first = row == 0 ? 0 : end_of[row - 1];
      if (first != end_of[row] || a.mode == WriteMode::assign)
        vector_.embedding_row(a, row, order + first, end_of[row] - first);
    }
  });
}

}  // namespace trainerd::kernels
