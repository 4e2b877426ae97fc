#pragma once

// Matrix products by a warp group, four warps whose first has a number that is a multiple of 4 (PTX ISA 8.x,
// asynchronous warpgroup matrix instructions; sm_90a alone, a trap elsewhere). They read both operands from
// shared memory while the threads go on. Compiled as plain C++ they are only declarations: the host emulation
// of the operator tests defines them from the ISA's tables.
//
// c[n] of a lane has columns 8 n to 8 n + 7 of outputs, in the layout of C in mma.cuh; warp w of the group
// has rows 16 w to 16 w + 15 of 64. From `begin_group_products` to the wait nothing else touches c.
//
// An operand's memory consists of rows of 128 bytes whose 16-byte chunk j is at place j xor (r mod 8) of row
// r, as in a Panel, from a multiple of 1024 bytes on. Deep: a row has summands of one row (or column) of
// outputs. Otherwise a row has 64 rows (or columns) of outputs of one summand, and panels of 64 summands
// follow each other.

#include "kernels/cuda/kernels/mma.cuh"

namespace trainerd::kernels::cuda {

constexpr int kOuterPanelBytes = 64 * 128;  ///< of 64 summands of 64 rows or columns of outputs

/// Descriptor of an operand (PTX ISA, "matrix descriptor format"): address, leading and stride byte offset in
/// units of 16 bytes, swizzle of 128 bytes. Eight rows take 1024 bytes. The leading offset is not used if
/// deep.
__device__ constexpr std::uint64_t describe_operand(SharedAddress address, bool deep) {
  return static_cast<std::uint64_t>((address & 0x3ffffu) >> 4) |
         static_cast<std::uint64_t>(deep ? 1 : kOuterPanelBytes >> 4) << 16 | std::uint64_t{1024 >> 4} << 32 |
         std::uint64_t{1} << 62;
}

static_assert(describe_operand(0x420, true) == 0x4000004000010042 &&
              describe_operand(0x400, false) == 0x4000004002000040);

#ifdef __CUDACC__

#define TRAINERD_SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define TRAINERD_SUMS_OF_64(n)                                                                              \
  TRAINERD_SUMS(n), TRAINERD_SUMS(n + 1), TRAINERD_SUMS(n + 2), TRAINERD_SUMS(n + 3), TRAINERD_SUMS(n + 4), \
      TRAINERD_SUMS(n + 5), TRAINERD_SUMS(n + 6), TRAINERD_SUMS(n + 7)

/// c (+)= A B^T of m64n128k32 with E4M3 operands, both deep. `a` and `b` are the addresses of the first of 32
/// summands in the group's first row, and in the first column.
__device__ inline void multiply_group_e4m3(float (&c)[16][4], SharedAddress a, SharedAddress b,
                                           bool accumulate) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1;\n"
      "}\n"
      : TRAINERD_SUMS_OF_64(0), TRAINERD_SUMS_OF_64(8)
      : "l"(describe_operand(a, true)), "l"(describe_operand(b, true)), "r"(static_cast<int>(accumulate)));
#else
  __trap();
#endif
}

#define TRAINERD_GROUP_PRODUCT(operands)                                                                  \
  asm volatile(                                                                                           \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." operands                                             \
      " "                                                                                                 \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
      "%128, %129, 1, 1, 1, %130, %131;\n"                                                                \
      : TRAINERD_SUMS_OF_64(0), TRAINERD_SUMS_OF_64(8), TRAINERD_SUMS_OF_64(16), TRAINERD_SUMS_OF_64(24)  \
      : "l"(describe_operand(a, ADeep)), "l"(describe_operand(b, BDeep)), "n"(ADeep ? 0 : 1),             \
        "n"(BDeep ? 0 : 1))
/// c += A B^T of m64n256k16 with operands of T: Bf16 or Fp16. The addresses are those of the first of 16
/// summands in the group's first row, and in the first column.
template <class T, bool ADeep, bool BDeep>
__device__ inline void multiply_group(float (&c)[32][4], SharedAddress a, SharedAddress b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<T, Bf16>) TRAINERD_GROUP_PRODUCT("bf16.bf16");
  else TRAINERD_GROUP_PRODUCT("f16.f16");
#else
  __trap();
#endif
}

#undef TRAINERD_GROUP_PRODUCT
#undef TRAINERD_SUMS_OF_64
#undef TRAINERD_SUMS

/// Makes this thread's writes to shared memory visible to the group's products after a barrier.
__device__ inline void show_shared_to_groups() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ inline void begin_group_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/// Ends a batch of products. `wait_group_products_but<N>` waits for all batches but the last N.
__device__ inline void end_group_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int N>
__device__ inline void wait_group_products_but() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
/// Waits for all products. Only then is c read.
template <int N>
__device__ inline void wait_group_products(float (&c)[N][4]) {
  wait_group_products_but<0>();
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
}

#else

/// The instruction with its descriptors; `a_order` and `b_order` are 0 for deep operands, else 1.
enum class GroupElement : std::uint8_t { e4m3, bf16, fp16 };
void group_product(float (*c)[4], std::uint64_t a, std::uint64_t b, GroupElement element, int a_order,
                   int b_order, bool accumulate);
inline void multiply_group_e4m3(float (&c)[16][4], SharedAddress a, SharedAddress b, bool accumulate) {
  group_product(c, describe_operand(a, true), describe_operand(b, true), GroupElement::e4m3, 0, 0,
                accumulate);
}
template <class T, bool ADeep, bool BDeep>
void multiply_group(float (&c)[32][4], SharedAddress a, SharedAddress b) {
  group_product(c, describe_operand(a, ADeep), describe_operand(b, BDeep),
                std::is_same_v<T, Bf16> ? GroupElement::bf16 : GroupElement::fp16, ADeep ? 0 : 1,
                BDeep ? 0 : 1, true);
}
void show_shared_to_groups();
void begin_group_products();
void end_group_products();
void wait_group_products_but(int batches);
template <int N>
void wait_group_products_but() {
  wait_group_products_but(N);
}
template <int N>
void wait_group_products(float (&)[N][4]) {
  wait_group_products_but(0);
}

#endif

}  // namespace trainerd::kernels::cuda
