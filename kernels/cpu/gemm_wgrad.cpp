#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8.h"
#include "kernels/cpu/gemm_cache.h"
#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/tiling/gemm_tiling.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {
namespace {

/// Common to all variants: the call, its plan, and one thread's scratch.
struct WgradCall {
  const LinearWgrad& args;
  const WgradScratch& plan;
  const GemmKernels& kernels;
  base::ThreadPool& pool;
  std::byte* scratch;

  float* sums(int thread) const {
    return reinterpret_cast<float*>(scratch + plan.sums + thread * plan.sums_bytes);
  }
  float* bias_sums(int thread) const {
    return reinterpret_cast<float*>(scratch + plan.bias_sums + thread * plan.bias_bytes);
  }
  /// out[rows][columns] at (row, column) of the gradient (+)= sums.
  void finish(const float* sums, std::int64_t row, std::int64_t rows, std::int64_t column,
              std::int64_t columns) const {
    FinishRows f{.sums = sums, .sums_stride = plan.sums_stride, .rows = rows, .columns = columns};
    f.dtype = args.dweight_NC.dtype;
    f.out = args.dweight_NC.data + (row * plan.C + column) * size_of(f.dtype);
    f.out_stride = plan.C;
    if (args.mode == WriteMode::accumulate) f.addend = f.out;
    kernels.finish_rows(f);
  }
  /// The bias gradient of rows [row, row + rows) of dw.
  void make_bias(int thread, const std::byte* dy, DType dy_dtype, std::int64_t row, std::int64_t rows) const {
    kernels.column_sums(dy_dtype, dy, plan.N, plan.tokens, rows, bias_sums(thread));
    finish_bias(bias_sums(thread), row, rows);
  }
  void finish_bias(const float* sums, std::int64_t row, std::int64_t rows) const {
    FinishRows f{.sums = sums, .sums_stride = rows, .rows = 1, .columns = rows};
    f.dtype = args.dbias_N.dtype;
    f.out = args.dbias_N.data + row * size_of(f.dtype);
    f.out_stride = rows;
    if (args.mode == WriteMode::accumulate) f.addend = f.out;
    kernels.finish_rows(f);
  }
};

/// The bias gradient alone, if there is one.
void run_bias(const WgradCall& c) {
  if (!c.args.dbias_N.defined()) return;
  const WgradScratch& p = c.plan;
  c.pool.run(p.rows.count, [&](std::int64_t block, int thread) {
    const std::int64_t row = block * p.rows.size;
    c.make_bias(thread, c.args.dy_TN.data + row * size_of(p.dtype), p.dtype, row,
                std::min(p.rows.size, p.N - row));
  });
}

/// Packs x once for all threads. Then one thread computes each block of dw's rows, over all tokens in order,
/// so that the sums do not depend on the number of threads.
void run_own(const WgradCall& c) {
  const LinearWgrad& a = c.args;
  const WgradScratch& p = c.plan;
  const std::int64_t depth = wgrad_depth(p.dtype), element = size_of(p.dtype);
  for (std::int64_t column = 0; column < p.C; column += p.columns) {
    const std::int64_t columns = std::min(p.columns, p.C - column);
    const std::int64_t block_bytes =
        (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns * kWgradWords * 4;
    c.pool.run(p.token_blocks, [&](std::int64_t block, int) {
      c.kernels.pack_wgrad_x(p.dtype, a.x_TC.data + (block * depth * p.C + column) * element, p.C,
                             std::min(depth, p.tokens - block * depth), columns,
                             c.scratch + p.x + block * block_bytes);
    });
    c.pool.run(p.rows.count, [&](std::int64_t block, int thread) {
      const std::int64_t row = block * p.rows.size, rows = std::min(p.rows.size, p.N - row);
      WgradBlock w{.dtype = p.dtype,
                   .dy = a.dy_TN.data + row * element,
                   .dy_stride = p.N,
                   .tokens = p.tokens,
                   .rows = rows,
                   .packed_x = c.scratch + p.x,
                   .packed_x_words = block_bytes / 4,
                   .columns = columns,
                   .packed_dy = c.scratch + p.dy + thread * p.dy_bytes,
                   .sums = c.sums(thread),
                   .sums_stride = p.sums_stride};
      if (p.in_place) {
        w.sums = a.dweight_NC.as<float>() + row * p.C + column;
        w.sums_stride = p.C;
        w.mode = a.mode;
      }
      if (a.dbias_N.defined() && column == 0) w.bias_sums = c.bias_sums(thread);
      c.kernels.wgrad_block(w);
      if (!p.in_place) c.finish(w.sums, row, rows, column, columns);
      if (w.bias_sums != nullptr) c.finish_bias(w.bias_sums, row, rows);
    });
  }
}

/// Uses oneDNN's AMX matmul. It only reads rows, so each thread first transposes its block of dy. Returns
/// true if oneDNN used its reference implementation.
bool run_amx(const WgradCall& c, GemmCache& cache, const Target& target) {
  const LinearWgrad& a = c.args;
  const WgradScratch& p = c.plan;
  const std::int64_t element = size_of(p.dtype);
  const auto rows_of = [&](std::int64_t block) { return std::min(p.rows.size, p.N - block * p.rows.size); };
  const auto tokens_of = [&](std::int64_t block) {
    return std::min(kAmxWgradTokens, p.tokens - block * kAmxWgradTokens);
  };
  const auto gemm_of = [&](std::int64_t row_block, std::int64_t token_block) -> const Gemm& {
    GemmKey key;
    key.m = rows_of(row_block);
    key.n = p.C;
    key.k = tokens_of(token_block);
    key.lda = p.dy_stride;
    key.ldb = p.C;
    key.in = p.dtype;
    key.addend = token_block > 0 ? GemmKey::Addend::in_place : GemmKey::Addend::none;
    return cache.get(key);
  };
  // Create all primitives before threads use them. The last block of rows and of tokens may be smaller.
  bool reference = false;
  for (const std::int64_t row_block : {std::int64_t{0}, p.rows.count - 1})
    for (std::int64_t token_block = 0; token_block < p.token_blocks; ++token_block)
      reference = gemm_of(row_block, token_block).is_reference() || reference;
  c.pool.run(p.rows.count, [&](std::int64_t block, int thread) {
    const std::int64_t row = block * p.rows.size, rows = rows_of(block);
    const std::byte* dy = a.dy_TN.data + row * element;
    std::byte* transposed = c.scratch + p.dy + thread * p.dy_bytes;
    for (std::int64_t t = 0; t < p.token_blocks; ++t) {
      const std::int64_t first = t * kAmxWgradTokens;
      c.kernels.transpose(dy + first * p.N * element, p.N, tokens_of(t), rows, transposed, p.dy_stride);
      gemm_of(block, t).run(thread, {.a = transposed,
                                     .b = a.x_TC.data + first * p.C * element,
                                     .c = reinterpret_cast<std::byte*>(c.sums(thread)),
                                     .scratch = c.scratch + p.library + thread * library_scratch(target)});
    }
    c.finish(c.sums(thread), row, rows, 0, p.C);
    if (a.dbias_N.defined()) c.make_bias(thread, dy, p.dtype, row, rows);
  });
  return reference;
}

/// Uses oneDNN's matmul with dy read by columns, in fp32 if the operands are `widened`. Returns true if
/// oneDNN used its reference implementation.
bool run_library(const WgradCall& c, GemmCache& cache, const VectorKernels& vector, const Target& target) {
  const LinearWgrad& a = c.args;
  const WgradScratch& p = c.plan;
  const std::byte *dy = a.dy_TN.data, *x = a.x_TC.data;
  DType dtype = p.dtype;
  if (widened(dtype, target)) {
    c.pool.run(p.tokens, [&](std::int64_t t, int) {
      vector.cast(p.dtype, dy + t * p.N * size_of(p.dtype), DType::f32, c.scratch + p.dy + t * p.N * 4, p.N);
      vector.cast(p.dtype, x + t * p.C * size_of(p.dtype), DType::f32, c.scratch + p.x + t * p.C * 4, p.C);
    });
    dy = c.scratch + p.dy;
    x = c.scratch + p.x;
    dtype = DType::f32;
  }
  const auto gemm_of = [&](std::int64_t rows) -> const Gemm& {
    GemmKey key;
    key.m = rows;
    key.n = p.C;
    key.k = p.tokens;
    key.lda = p.N;
    key.ldb = p.C;
    key.left = GemmKey::Left::transposed;
    key.in = dtype;
    return cache.get(key);
  };
  const std::int64_t last_rows = p.N - (p.rows.count - 1) * p.rows.size;
  const Gemm& last = gemm_of(last_rows);
  const Gemm& whole = gemm_of(std::min(p.rows.size, p.N));
  c.pool.run(p.rows.count, [&](std::int64_t block, int thread) {
    const std::int64_t row = block * p.rows.size;
    const std::int64_t rows = block + 1 == p.rows.count ? last_rows : p.rows.size;
    (block + 1 == p.rows.count ? last : whole)
        .run(thread, {.a = dy + row * size_of(dtype),
                      .b = x,
                      .c = reinterpret_cast<std::byte*>(c.sums(thread)),
                      .scratch = c.scratch + p.library + thread * library_scratch(target)});
    c.finish(c.sums(thread), row, rows, 0, p.C);
    if (a.dbias_N.defined()) c.make_bias(thread, dy + row * size_of(dtype), dtype, row, rows);
  });
  return last.is_reference() || whole.is_reference();
}

}  // namespace

void CpuBackend::linear_wgrad(Stream& stream, const LinearWgrad& args) {
  const ArenaScope scope(stream.scratch());
  if (args.format == GemmFormat::fp8) {
    const Fp8Operands operands(stream.scratch(), pool_, vector_);
    LinearWgrad rounded = args;
    rounded.dy_TN = operands.by_columns(args.dy_TN);
    rounded.x_TC = operands.by_columns(args.x_TC);
    rounded.format = GemmFormat::plain;
    rounded.dbias_N = {};
    linear_wgrad(stream, rounded);
  }
  const WgradScratch plan(args, target_);
  std::byte* scratch = stream.scratch().take_bytes(plan.total(), MemoryTerm::workspace);
  base::check(args.dy_TN.shape == Shape{plan.tokens, plan.N} &&
                  args.x_TC.shape == Shape{plan.tokens, plan.C} && args.dy_TN.dtype == plan.dtype,
              "linear_wgrad: shapes or dtypes disagree");
  if (plan.tokens == 0) {
    if (args.mode == WriteMode::assign) {
      fill_zero(stream, args.dweight_NC);
      if (args.dbias_N.defined()) fill_zero(stream, args.dbias_N);
    }
    return;
  }
  const WgradCall call{args, plan, gemm_kernels_of(target_.isa), pool_, scratch};
  if (args.format == GemmFormat::fp8) return run_bias(call);
  if (plan.own) return run_own(call);
  if (by_amx(plan.dtype, target_)) {
    reference_gemms_ += run_amx(call, *gemms_, target_);
    return;
  }
  widened_gemms_ += widened(plan.dtype, target_);
  reference_gemms_ += run_library(call, *gemms_, vector_, target_);
}

}  // namespace trainerd::kernels
