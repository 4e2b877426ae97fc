#include "kernels/cpu/simd/gemm_kernels.h"

#include <algorithm>

#include "kernels/cpu/simd/tile.h"

namespace trainerd::kernels::TRAINERD_SIMD {
namespace {

static_assert(kPanelColumns % kPanel == 0 && kWgradGroup % kTileRows == 0);

template <class T>
const T* elements(const std::byte* p) {
  return reinterpret_cast<const T*>(p);
}
Word* words(std::byte* p) { return reinterpret_cast<Word*>(p); }
const Word* words(const std::byte* p) { return reinterpret_cast<const Word*>(p); }

template <class T>
void prepare_fprop(const std::byte* weight, std::int64_t C, std::int64_t block, std::byte* out) {
  const std::int64_t depth = words_of<T>(C), end = (block + 1) * kPanelColumns;
  for (std::int64_t row = block * kPanelColumns; row < end; row += kPanel)
    pack_transposed(elements<T>(weight) + row * C, C, kPanel, C, words(out) + row * depth, depth);
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

/// Two rows form one row of words, and a transposed word row is two elements per row.
void transpose(const Bf16* in, std::int64_t stride, std::int64_t rows, std::int64_t columns, Word* out,
               std::int64_t out_stride) {
  alignas(64) Word block[16 * 16];
  for (std::int64_t row = 0; row < rows; row += 32)
    for (std::int64_t column = 0; column < columns; column += 16) {
      const std::int64_t width = std::min<std::int64_t>(16, columns - column);
      for (std::int64_t k = 0; k < 16; ++k) {
        const std::int64_t low = row + 2 * k;
        const Bf16* from = in + low * stride + column;
        if (low < rows) pack_row(from, low + 1 < rows ? from + stride : nullptr, width, block + k * 16, 16);
        else std::fill_n(block + k * 16, 16, Word{0});
      }
      transpose_16x16(block, 16, out + column * out_stride + row / 2, out_stride);
    }
}

/// sums[j] (+)= column sums over rows in rising order.
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
  for (std::int64_t t = 0, block = 0; t < w.tokens; t += depth, ++block) {
    const std::int64_t tokens = std::min(depth, w.tokens - t);
    const T* dy = elements<T>(w.dy) + t * w.dy_stride;
    pack_rows(dy, w.dy_stride, tokens, w.rows, kWgradGroup, words(w.packed_dy), group_words);
    if (w.bias_sums != nullptr)
      add_column_sums(dy, w.dy_stride, tokens, w.rows, w.bias_sums,
                      t > 0 ? WriteMode::accumulate : WriteMode::assign);
    const WriteMode mode = t > 0 ? WriteMode::accumulate : w.mode;
    for (std::int64_t panel = 0; panel < panels_of(w.columns); ++panel) {
      const Word* right = words(w.packed_x) + block * w.packed_x_words + panel * kPanel * kWgradWords;
      const std::int64_t columns = std::min(kPanel, w.columns - panel * kPanel);
      for (std::int64_t row = 0; row < w.rows; row += kTileRows)
        tile<T>(words(w.packed_dy) + row / kWgradGroup * group_words + row % kWgradGroup, {1, kWgradGroup},
                right, words_of<T>(tokens), w.sums + row * w.sums_stride + panel * kPanel, w.sums_stride,
                std::min(kTileRows, w.rows - row), columns, mode);
    }
  }
}

/// The last rows of a block, fewer than the rows of a tile.
template <int Rows>
void last_rows(std::int64_t rows, const Word* a, LeftStrides strides, const Word* b, std::int64_t depth,
               float* c, std::int64_t ldc, WriteMode mode) {
  if (rows == Rows) tile<float, kTileVectors, Rows>(a, strides, b, depth, c, ldc, rows, mode);
  else if constexpr (Rows > 1) last_rows<Rows - 1>(rows, a, strides, b, depth, c, ldc, mode);
}

/// Words of the reduction processed together: those of a panel stay in the first-level cache.
constexpr std::int64_t kLinearDepth = 256;

/// Words [k, k + kLinearDepth) of the reduction, for the columns of one panel.
void linear_panel(const LinearBlock& l, std::int64_t column, std::int64_t k) {
  const std::int64_t depth = std::min(kLinearDepth, l.depth - k);
  const Word* in = reinterpret_cast<const Word*>(l.in) + k;
  const Word* panel = words(l.prepared) + column * l.depth + k * kPanel;
  const WriteMode mode = k > 0 ? WriteMode::accumulate : l.mode;
  for (std::int64_t row = 0; row < l.rows; row += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, l.rows - row);
    const Word* a = in + row * l.depth;
    float* c = l.out + row * l.columns + column;
    if (rows == kTileRows) tile<float, kTileVectors>(a, {l.depth, 1}, panel, depth, c, l.columns, rows, mode);
    else last_rows<kTileRows - 1>(rows, a, {l.depth, 1}, panel, depth, c, l.columns, mode);
  }
}

void add_ends(const LinearBlock& l) {
  for (std::int64_t row = 0; row < l.rows; ++row)
    for (std::int64_t i = 0; i < l.columns; i += kLanes) {
      float* out = l.out + row * l.columns + i;
      Vec x = load(out);
      if (l.bias != nullptr) with_type(l.bias_dtype, [&]<class B>(B) { x += load(elements<B>(l.bias) + i); });
      if (l.addend != nullptr) x += load(l.addend + row * l.columns + i);
      store(out, x);
    }
}

/// Loops repeatedly over the smaller of input and output, which stays in the second-level cache. Either way
/// each result sums its products in rising order, independent of neighbouring rows.
void linear_block(const LinearBlock& l) {
  if (l.depth > l.columns)
    for (std::int64_t k = 0; k < l.depth; k += kLinearDepth)
      for (std::int64_t column = 0; column < l.columns; column += kPanel) linear_panel(l, column, k);
  else
    for (std::int64_t column = 0; column < l.columns; column += kPanel)
      for (std::int64_t k = 0; k < l.depth; k += kLinearDepth) linear_panel(l, column, k);
  if (l.bias != nullptr || l.addend != nullptr) add_ends(l);
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

}  // namespace

const GemmKernels& gemm_kernels() {
  static constexpr GemmKernels kKernels{
      .prepare_fprop =
          [](DType dtype, const std::byte* weight, std::int64_t C, std::int64_t block, std::byte* out) {
            dtype == DType::bf16 ? prepare_fprop<Bf16>(weight, C, block, out)
                                 : prepare_fprop<float>(weight, C, block, out);
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
      .transpose =
          [](const std::byte* in, std::int64_t stride, std::int64_t rows, std::int64_t columns,
             std::byte* out, std::int64_t out_stride) {
            transpose(elements<Bf16>(in), stride, rows, columns, words(out), out_stride / 2);
          },
      .linear_block = linear_block,
      .finish_rows =
          [](const FinishRows& f) {
            with_types(f.dtype, f.bias_dtype,
                       [&]<class Out, class Bias>(Out, Bias) { finish<Out, Bias>(f); });
          },
      .column_sums =
          [](DType dtype, const std::byte* x, std::int64_t stride, std::int64_t rows, std::int64_t columns,
             float* sums) {
            with_type(dtype, [&]<class T>(T) {
              add_column_sums(elements<T>(x), stride, rows, columns, sums, WriteMode::assign);
            });
          },
  };
  return kKernels;
}

}  // namespace trainerd::kernels::TRAINERD_SIMD
