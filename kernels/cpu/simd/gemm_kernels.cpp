#include "kernels/cpu/simd/gemm_kernels.h"

#include <algorithm>

#include "kernels/cpu/simd/tile.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

static_assert(kPanel == kPanelColumns && kWgradGroup % kTileRows == 0);

template <class T>
const T* elements(const std::byte* p) {
  return reinterpret_cast<const T*>(p);
}
Word* words(std::byte* p) { return reinterpret_cast<Word*>(p); }
const Word* words(const std::byte* p) { return reinterpret_cast<const Word*>(p); }

template <class T>
void prepare_fprop(const std::byte* weight, std::int64_t C, std::int64_t panel, std::byte* out) {
  const std::int64_t depth = words_of<T>(C);
  pack_transposed(elements<T>(weight) + panel * kPanel * C, C, kPanel, C, words(out) + panel * kPanel * depth,
                  depth);
}

template <class T>
void prepare_dgrad(const std::byte* weight, std::int64_t N, std::int64_t C, std::int64_t row,
                   std::int64_t rows, std::byte* out) {
  pack_rows(elements<T>(weight) + row * C, C, rows, C, kPanel, words(out) + row / kPerWord<T> * kPanel,
            words_of<T>(N) * kPanel);
}

template <class T>
void pack_wgrad_x(const std::byte* x, std::int64_t stride, std::int64_t tokens, std::int64_t columns,
                  std::byte* out) {
  pack_rows(elements<T>(x), stride, tokens, columns, kPanel, words(out), kWgradWords * kPanel);
}

/// sums[j] (+)= column sums, rows in rising order.
template <class T>
void add_column_sums(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* sums,
                     WriteMode mode) {
  for_each_vec(columns, [&](auto load, auto store) {
    Vec sum = zero();
    for (std::int64_t t = 0; t < rows; ++t) sum += load(x + t * stride);
    store(sums, mode == WriteMode::accumulate ? load(static_cast<const float*>(sums)) + sum : sum);
  });
}

template <class T>
void wgrad_block(const WgradBlock& w) {
  constexpr std::int64_t depth = wgrad_depth(DTypeOf<T>::value);
  constexpr std::int64_t group_words = kWgradWords * kWgradGroup;
  const std::int64_t block_words = panels_of(w.columns) * kPanel * kWgradWords;
  for (std::int64_t t = 0, block = 0; t < w.tokens; t += depth, ++block) {
    const std::int64_t tokens = std::min(depth, w.tokens - t);
    const T* dy = elements<T>(w.dy) + t * w.dy_stride;
    pack_rows(dy, w.dy_stride, tokens, w.rows, kWgradGroup, words(w.packed_dy), group_words);
    if (w.bias_sums != nullptr)
      add_column_sums(dy, w.dy_stride, tokens, w.rows, w.bias_sums,
                      t > 0 ? WriteMode::accumulate : WriteMode::assign);
    const WriteMode mode = t > 0 ? WriteMode::accumulate : w.mode;
    for (std::int64_t panel = 0; panel < panels_of(w.columns); ++panel) {
      const Word* right = words(w.packed_x) + block * block_words + panel * kPanel * kWgradWords;
      const std::int64_t columns = std::min(kPanel, w.columns - panel * kPanel);
      for (std::int64_t row = 0; row < w.rows; row += kTileRows)
        tile<T>(words(w.packed_dy) + row / kWgradGroup * group_words + row % kWgradGroup, {1, kWgradGroup},
                right, words_of<T>(tokens), w.sums + row * w.sums_stride + panel * kPanel, w.sums_stride,
                std::min(kTileRows, w.rows - row), columns, mode);
    }
  }
}

template <class Out, class Bias>
void finish(const FinishRows& f) {
  for (std::int64_t row = 0; row < f.rows; ++row) {
    const float* sums = f.sums + row * f.sums_stride;
    const auto* bias = elements<Bias>(f.bias);
    const Out* addend = f.addend == nullptr ? nullptr : elements<Out>(f.addend) + row * f.out_stride;
    Out* out = reinterpret_cast<Out*>(f.out) + row * f.out_stride;
    for_each_vec(f.columns, [&](auto load, auto store) {
      Vec x = load(sums);
      if (bias != nullptr) x += load(bias);
      if (addend != nullptr) x += load(addend);
      store(out, x);
    });
  }
}

template <class Out>
void finish_as(const FinishRows& f) {
  f.bias_dtype == DType::bf16 ? finish<Out, Bf16>(f) : finish<Out, float>(f);
}

}  // namespace

const GemmKernels& gemm_kernels() {
  static constexpr GemmKernels kKernels{
      .prepare_fprop =
          [](DType dtype, const std::byte* weight, std::int64_t C, std::int64_t panel, std::byte* out) {
            dtype == DType::bf16 ? prepare_fprop<Bf16>(weight, C, panel, out)
                                 : prepare_fprop<float>(weight, C, panel, out);
          },
      .prepare_dgrad =
          [](DType dtype, const std::byte* weight, std::int64_t N, std::int64_t C, std::int64_t row,
             std::int64_t rows, std::byte* out) {
            dtype == DType::bf16 ? prepare_dgrad<Bf16>(weight, N, C, row, rows, out)
                                 : prepare_dgrad<float>(weight, N, C, row, rows, out);
          },
      .pack_wgrad_x =
          [](DType dtype, const std::byte* x, std::int64_t stride, std::int64_t tokens, std::int64_t columns,
             std::byte* out) {
            dtype == DType::bf16 ? pack_wgrad_x<Bf16>(x, stride, tokens, columns, out)
                                 : pack_wgrad_x<float>(x, stride, tokens, columns, out);
          },
      .wgrad_block =
          [](const WgradBlock& w) { w.dtype == DType::bf16 ? wgrad_block<Bf16>(w) : wgrad_block<float>(w); },
      .finish_rows =
          [](const FinishRows& f) { f.dtype == DType::bf16 ? finish_as<Bf16>(f) : finish_as<float>(f); },
      .column_sums =
          [](DType dtype, const std::byte* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
             float* sums) {
            dtype == DType::bf16
                ? add_column_sums(elements<Bf16>(x), stride, rows, columns, sums, WriteMode::assign)
                : add_column_sums(elements<float>(x), stride, rows, columns, sums, WriteMode::assign);
          },
  };
  return kKernels;
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
