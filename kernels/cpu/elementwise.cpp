#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/vector_kernels.h"
#include "kernels/cpu/tiling/blocks.h"
#include "kernels/tensor/rng.h"

namespace trainerd::kernels {
namespace {

/// The four values of `normal_at` that share one Philox call, with the same bits.
void four_normals(std::uint64_t key, std::uint64_t quad, float out[4]) {
  const auto r = philox(key, quad, 0);
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const float radius = std::sqrt(-2.0f * std::log(unit_float(r[pair])));
    const float angle = 6.28318530717958647692f * unit_float(r[pair + 1]);
    out[pair] = radius * std::cos(angle);
    out[pair + 1] = radius * std::sin(angle);
  }
}

// Values drawn at a time, before they are narrowed or used as factors.
constexpr std::int64_t kDrawn = 1024;

/// out[i] = mean + stddev * normal(index + i)
void fill_normal(float* out, std::uint64_t key, std::uint64_t index, std::int64_t count, float mean,
                 float stddev) {
  float values[4];
  for (std::int64_t i = 0; i < count;) {
    const std::uint64_t at = index + static_cast<std::uint64_t>(i);
    four_normals(key, at >> 2, values);
    for (std::uint64_t lane = at & 3u; lane < 4 && i < count; ++lane, ++i)
      out[i] = mean + stddev * values[lane];
  }
}

/// The same with `uniform_at`.
void fill_uniform(float* out, std::uint64_t key, std::uint64_t index, std::int64_t count, float mean,
                  float stddev) {
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = mean + stddev * uniform_at(key, index + static_cast<std::uint64_t>(i));
}

}  // namespace

void CpuBackend::add(Stream&, const Add& a) {
  const std::int64_t size = size_of(a.out.dtype);
  base::check(a.a.dtype == a.out.dtype && a.b.dtype == a.out.dtype && a.a.numel() == a.out.numel() &&
                  a.b.numel() == a.out.numel(),
              "add: all three alike");
  for_each_block(pool_, a.out.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    vector_.add(a.out.dtype, a.a.data + begin * size, a.b.data + begin * size, a.out.data + begin * size,
                end - begin);
  });
}

void CpuBackend::scale(Stream&, const Scale& a) {
  const std::int64_t size = size_of(a.x.dtype);
  base::check(is_float(a.x.dtype) && a.out.dtype == a.x.dtype && a.out.numel() == a.x.numel(),
              "scale: fp32, bf16 or fp16, out alike");
  for_each_block(pool_, a.x.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    vector_.scale(a.x.dtype, a.x.data + begin * size, a.factor, a.out.data + begin * size, end - begin);
  });
}

void CpuBackend::dropout(Stream&, const Dropout& a) {
  const std::int64_t size = size_of(a.x.dtype);
  base::check(is_float(a.x.dtype) && a.out.dtype == a.x.dtype && a.out.numel() == a.x.numel() &&
                  a.rate >= 0 && a.rate < 1,
              "dropout: fp32, bf16 or fp16, out alike, a rate of 0 to 1");
  const std::uint32_t threshold = dropout_threshold(a.rate);
  const float scale = dropout_scale(a.rate);
  for_each_block(pool_, a.x.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, kDrawn> factors;
    for (std::int64_t i = begin; i < end; i += kDrawn) {
      const std::int64_t count = std::min(kDrawn, end - i);
      const std::uint64_t first = a.first + static_cast<std::uint64_t>(i);
      std::array<std::uint32_t, 4> shared = dropout_call(a.key, first);
      for (std::uint64_t k = 0; k < static_cast<std::uint64_t>(count); ++k) {
        if (((first + k) & 7u) == 0) shared = dropout_call(a.key, first + k);
        factors[k] = dropout_bits(shared, first + k) < threshold ? 0.0f : scale;
      }
      vector_.multiply(a.x.dtype, a.x.data + i * size, factors.data(), a.out.data + i * size, count);
    }
  });
}

void CpuBackend::cast(Stream& stream, const Cast& a) {
  base::check(a.in.numel() == a.out.numel(), "cast: as many elements out as in");
  if (a.in.dtype == a.out.dtype) return copy(stream, a.in, a.out);
  check_not_mixed(a.in.dtype, a.out.dtype);
  for_each_block(pool_, a.in.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    vector_.cast(a.in.dtype, a.in.data + begin * size_of(a.in.dtype), a.out.dtype,
                 a.out.data + begin * size_of(a.out.dtype), end - begin);
  });
}

void CpuBackend::copy_rows(Stream&, const CopyRows& a) {
  check_args(a);
  const std::int64_t rows = a.in.size(0), in_size = size_of(a.in.dtype), out_size = size_of(a.out.dtype),
                     chunk = dealt_chunk_rows(rows, a.ranks, a.sequences);
  const auto source = [&](std::int64_t row) {
    if (a.order == RowOrder::rank_to_sequence) return dealt_row(row, a.ranks, a.sequences, chunk);
    if (a.order == RowOrder::sequence_to_rank) return undealt_row(row, a.ranks, a.sequences, chunk);
    return row;
  };
  for_each_block(pool_, rows, rows_per_block(a.columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::byte* from = a.in.data + (source(row) * a.in.size(1) + a.in_column) * in_size;
      std::byte* to = a.out.data + (row * a.out.size(1) + a.out_column) * out_size;
      if (a.in.dtype == a.out.dtype) std::copy_n(from, a.columns * out_size, to);
      else vector_.cast(a.in.dtype, from, a.out.dtype, to, a.columns);
    }
  });
}

void CpuBackend::sum_parts(Stream&, const SumParts& a) {
  const std::int64_t n = a.out.numel();
  check_not_mixed(a.x.dtype, a.out.dtype);
  base::check(a.parts >= 1 && a.x.numel() == a.parts * n, "sum_parts: parts of the size of out");
  for_each_block(pool_, n, kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    vector_.sum_parts(a.x.dtype, a.x.data + begin * size_of(a.x.dtype), a.parts, n, a.out.dtype,
                      a.out.data + begin * size_of(a.out.dtype), end - begin, a.mode);
  });
}

void CpuBackend::init_normal(Stream&, const InitNormal& a) {
  base::check(a.x.numel() == a.rows * a.columns, "init: the shard is rows x columns");
  base::check(is_float(a.x.dtype), "init: fp32, bf16 or fp16");
  const bool narrow = a.x.dtype != DType::f32;
  const auto fill = a.draw == Draw::uniform ? fill_uniform : fill_normal;
  for_each_block(pool_, a.x.numel(), kBlockElements, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, kDrawn> drawn;
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t row = a.row + i / a.columns, column = a.column + i % a.columns;
      const std::int64_t run = std::min({end - i, a.columns - i % a.columns, narrow ? kDrawn : end - i});
      const std::int64_t inside =
          row < a.logical_rows ? std::clamp<std::int64_t>(a.logical_columns - column, 0, run) : 0;
      float* x = narrow ? drawn.data() : a.x.as<float>() + i;
      fill(x, a.key, static_cast<std::uint64_t>(row * a.logical_columns + column), inside, a.mean, a.stddev);
      std::fill(x + inside, x + run, 0.0f);
      if (a.x.dtype == DType::bf16) std::transform(x, x + run, a.x.as<Bf16>() + i, rounded_to<Bf16>);
      if (a.x.dtype == DType::f16) std::transform(x, x + run, a.x.as<Fp16>() + i, rounded_to<Fp16>);
      i += run;
    }
  });
}

}  // namespace trainerd::kernels
