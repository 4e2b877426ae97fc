#pragma once

#include <cstdint>

#include "kernels/target/target.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::kernels {

// How the GEMMs of the CPU backend are divided and how much scratch they take: arithmetic on shapes and the
// target, shared by the operators (gemm*.cpp) and by the planner (scratch_gemm.cpp).

/// Workspace limit of one oneDNN primitive, per thread. Version 2.6.3 needs at most 321 KiB for the shapes of
/// the presets with blocks of at most 256 rows, and on AMX up to 2.4 MiB if few columns have a deep
/// reduction. An implementation that needs more is skipped for the next one.
constexpr std::int64_t library_scratch(const Target& target) {
  return target.amx ? std::int64_t{2} << 20 : std::int64_t{512} << 10;
}

/// Number of blocks and rows per block.
struct Blocks {
  std::int64_t size = 0;
  std::int64_t count = 0;
};
/// Divides `n` rows into blocks of about `largest` at most. Their number is a multiple of `threads`, as far
/// as whole `unit`s allow.
constexpr Blocks even_blocks(std::int64_t n, std::int64_t largest, std::int64_t unit, int threads) {
  if (n <= 0) return {};
  const std::int64_t wanted = ((n + largest - 1) / largest + threads - 1) / threads * threads;
  const std::int64_t size = ((n + wanted - 1) / wanted + unit - 1) / unit * unit;
  return {size, (n + size - 1) / size};
}

/// True if a GEMM on these operands runs in fp32: of fp16, and of bf16 if the target has no bf16 GEMM.
constexpr bool widened(DType dtype, const Target& target) {
  return dtype == DType::f16 || (dtype == DType::bf16 && !target.bf16_gemm);
}
/// True if products of this dtype use AMX.
constexpr bool by_amx(DType dtype, const Target& target) { return dtype == DType::bf16 && target.amx; }
/// True if the weight gradient uses our own kernel. Otherwise it uses oneDNN; only oneDNN uses AMX.
constexpr bool own_wgrad(DType dtype, const Target& target) {
  return target.isa != Isa::portable && !widened(dtype, target) && !by_amx(dtype, target);
}
/// True if products with a prepared weight use our own kernel. With AVX-512 they use oneDNN, which reads
/// 64-column panels. Without AVX-512, oneDNN would use its reference implementation for them.
constexpr bool own_linear(DType dtype, const Target& target) {
  return target.isa == Isa::avx2 && dtype == DType::f32;
}

/// Number of threads over which a library product's rows or features are divided. oneDNN's order of sums
/// depends on the block size, except in its AVX-512 kernels. For the others only the shape determines the
/// blocks, so that the number of threads changes no bit. For a widened product `dtype` is fp32.
constexpr int sharing_threads(DType dtype, const Target& target) {
  const bool depends = target.isa < Isa::avx512 || by_amx(dtype, target);
  return depends ? 1 : target.threads;
}

/// Token rows per block of fprop and dgrad. oneDNN packs plain weights again for each block.
constexpr std::int64_t kTokenBlock = 256;
/// The same for a prepared weight on AMX, where only the shape determines the blocks. Small enough to share a
/// batch among many threads.
constexpr std::int64_t kAmxTokenBlock = 64;
/// Larger weights are not prepared for AMX: each block of `kAmxTokenBlock` rows would read the weight from
/// memory again, which takes longer than packing it per `kTokenBlock`.
constexpr std::int64_t kAmxPreparedBytes = std::int64_t{8} << 20;
constexpr Blocks library_blocks(std::int64_t tokens, std::int64_t largest, DType dtype, bool prepared,
                                const Target& target) {
  const bool amx = prepared && by_amx(dtype, target);
  return even_blocks(tokens, amx ? kAmxTokenBlock : largest, 16, sharing_threads(dtype, target));
}
/// Blocks of our own kernel, in whole tiles. The input of a block stays in the second-level cache. If the
/// weight is too large for caches, larger blocks use each read of it for more rows. No bit depends on them.
constexpr Blocks own_blocks(std::int64_t tokens, std::int64_t n, std::int64_t k, int threads) {
  return even_blocks(tokens, n * k > (std::int64_t{1} << 20) ? 384 : 96, 6, threads);
}
/// The same if a row kernel processes the results.
constexpr std::int64_t kOwnFusedBlock = 48;
/// Blocks whose results a row kernel processes: they stay in the second-level cache.
constexpr Blocks fused_blocks(std::int64_t tokens, DType dtype, bool prepared, const Target& target) {
  if (prepared && own_linear(dtype, target)) return even_blocks(tokens, kOwnFusedBlock, 6, target.threads);
  return library_blocks(tokens, prepared ? 256 / size_of(dtype) : kTokenBlock, dtype, prepared, target);
}
/// Output features per block of a widened GEMM, and rows per block of the weight gradient.
constexpr std::int64_t kFeatureBlock = 192;
constexpr std::int64_t kWgradRows = 96;
/// The same on AMX, where oneDNN packs all of x again for each block, and the number of tokens per product.
constexpr std::int64_t kAmxWgradRows = 192;
constexpr std::int64_t kAmxWgradTokens = 2048;
/// Columns of x that a weight gradient packs at a time.
constexpr std::int64_t kWgradColumns = 2048;

}  // namespace trainerd::kernels
