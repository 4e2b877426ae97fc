#pragma once

#include <cstdint>

#include "kernels/target/target.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::kernels {

// How the GEMMs of the CPU world are cut and what scratch they take: arithmetic on shapes and the target,
// shared by the operators (gemm*.cpp) and by the planner (scratch_gemm.cpp).

/// Workspace that one oneDNN primitive may ask for, per thread. 2.6.3 asks for 321 KiB at most over the
/// shapes of the presets with blocks of at most 256 rows, and on AMX for up to 2.4 MiB where few columns have
/// a deep reduction. An implementation that asks for more is passed over for the next one.
constexpr std::int64_t library_scratch(const Target& target) {
  return target.amx ? std::int64_t{2} << 20 : std::int64_t{512} << 10;
}

/// How many pieces of how many rows.
struct Blocks {
  std::int64_t size = 0;
  std::int64_t count = 0;
};
/// Cuts `n` rows in blocks of at most `largest` (about), as many as shared evenly by `threads`, of whole
/// `unit`s.
constexpr Blocks even_blocks(std::int64_t n, std::int64_t largest, std::int64_t unit, int threads) {
  if (n <= 0) return {};
  const std::int64_t wanted = ((n + largest - 1) / largest + threads - 1) / threads * threads;
  const std::int64_t size = ((n + wanted - 1) / wanted + unit - 1) / unit * unit;
  return {size, (n + size - 1) / size};
}

/// Whether a GEMM on these operands runs in fp32 because the target has no bf16 GEMM.
constexpr bool widened(DType dtype, const Target& target) {
  return dtype == DType::bf16 && !target.bf16_gemm;
}
/// Whether the products of a dtype are AMX's.
constexpr bool by_amx(DType dtype, const Target& target) { return dtype == DType::bf16 && target.amx; }
/// Whether the weight gradient is our own kernel. Elsewhere it is oneDNN's, which alone uses AMX.
constexpr bool own_wgrad(DType dtype, const Target& target) {
  return target.isa != Isa::portable && !widened(dtype, target) && !by_amx(dtype, target);
}
/// Whether products with a prepared weight are our own kernel. With AVX-512 they are oneDNN's, which reads
/// 64-column panels; without, it would compute them by its reference implementation.
constexpr bool own_linear(DType dtype, const Target& target) {
  return target.isa == Isa::avx2 && dtype == DType::f32;
}

/// By how many threads a library product's rows or features are shared out. oneDNN's order of sums depends on
/// the size of a block except by its AVX-512 kernels: elsewhere the shape alone cuts blocks, so that the
/// number of threads changes no bit. Of a widened product `dtype` is fp32.
constexpr int sharing_threads(DType dtype, const Target& target) {
  const bool depends = target.isa < Isa::avx512 || by_amx(dtype, target);
  return depends ? 1 : target.threads;
}

/// Token rows of a block of fprop and dgrad: with plain weights oneDNN packs them again for each block.
constexpr std::int64_t kTokenBlock = 256;
/// The same of a prepared weight on AMX, where the shape alone cuts: small enough to share a batch among many
/// threads.
constexpr std::int64_t kAmxTokenBlock = 64;
/// AMX prepares no larger weight: each block of `kAmxTokenBlock` rows would read it from memory again, which
/// takes longer than packing it for each `kTokenBlock`.
constexpr std::int64_t kAmxPreparedBytes = std::int64_t{8} << 20;
constexpr Blocks library_blocks(std::int64_t tokens, std::int64_t largest, DType dtype, bool prepared,
                                const Target& target) {
  const bool amx = prepared && by_amx(dtype, target);
  return even_blocks(tokens, amx ? kAmxTokenBlock : largest, 16, sharing_threads(dtype, target));
}
/// Blocks of our own kernel, in whole tiles: their input stays in the second-level cache, or, where the
/// weight comes from memory each time, the weight serves more rows. No bit depends on them.
constexpr Blocks own_blocks(std::int64_t tokens, std::int64_t n, std::int64_t k, int threads) {
  return even_blocks(tokens, n * k > (std::int64_t{1} << 20) ? 384 : 96, 6, threads);
}
/// The same where a row kernel takes up the results.
constexpr std::int64_t kOwnFusedBlock = 48;
/// Blocks whose results a row kernel takes up: they stay in the second-level cache.
constexpr Blocks fused_blocks(std::int64_t tokens, DType dtype, bool prepared, const Target& target) {
  if (prepared && own_linear(dtype, target)) return even_blocks(tokens, kOwnFusedBlock, 6, target.threads);
  return library_blocks(tokens, prepared ? 256 / size_of(dtype) : kTokenBlock, dtype, prepared, target);
}
/// Output features of a block of a widened GEMM, and rows of a block of the weight gradient.
constexpr std::int64_t kFeatureBlock = 192;
constexpr std::int64_t kWgradRows = 96;
/// The same on AMX, where oneDNN packs all of x again for each block, and how many tokens a product takes up.
constexpr std::int64_t kAmxWgradRows = 192;
constexpr std::int64_t kAmxWgradTokens = 2048;
/// Columns of x that a weight gradient packs at a time.
constexpr std::int64_t kWgradColumns = 2048;

}  // namespace trainerd::kernels
