#pragma once

// The warp's matrix instructions as functions (PTX ISA 8.x, sections on mma, ldmatrix, cp.async; sm_80 and
// later). All 32 lanes call the warp-wide ones together. Compiled as plain C++ they are only declarations:
// the host emulation of the operator tests defines them from the ISA's tables.
//
// Contents of lane 4 g + t (g = 0..7, t = 0..3) of m16n8k16. A register holds two bf16, the lower column or
// row in the low half:
//   A [16 x 16]: a0 = A[g][2t..]      a1 = A[g + 8][2t..]   a2 = A[g][2t + 8..]   a3 = A[g + 8][2t + 8..]
//   B [16 x 8]:  b0 = B[2t..][g]      b1 = B[2t + 8..][g]
//   C [16 x 8]:  c0, c1 = C[g][2t..]  c2, c3 = C[g + 8][2t..]   fp32
// So C of two neighbouring products of 8 columns, narrowed to bf16, is A of a product over these 16 columns.

#include <cuda_runtime.h>

#include <cstdint>

namespace trainerd::kernels::cuda {

/// An address of the block's shared memory, as the instructions take it.
using SharedAddress = std::uint32_t;

#ifdef __CUDACC__

/// The launch's dynamic shared memory.
__device__ inline SharedAddress dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char trainerd_dynamic_shared[];
  return static_cast<SharedAddress>(__cvta_generic_to_shared(trainerd_dynamic_shared));
}

/// Loads four 8 x 8 matrices of bf16. Lane 8 i + r passes the address of the 16 bytes of row r of matrix i.
/// x[i] = matrix i [g][2t..].
__device__ inline void load_matrices(std::uint32_t (&x)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row)
               : "memory");
}
/// The same with each matrix transposed: x[i] = matrix i [2t..][g].
__device__ inline void load_matrices_transposed(std::uint32_t (&x)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row)
               : "memory");
}

/// c += A B.
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// A row of 128 x 128 outputs' product by a warp group (PTX ISA, asynchronous warpgroup matrix instructions;
/// sm_90a alone): c (+)= A B^T of m64n128k32 with E4M3 operands in shared memory. Rows of A and B are 128
/// bytes apart, at a multiple of 1024 bytes, with the 16-byte chunk j of row r at place j xor (r mod 8), as
/// in a Panel; `a` is the group's first row of 64, and both addresses are those of the first of 32 summands.
/// Warp w of the group has rows 16 w to 16 w + 15 in c[n][..], in the layout of C above, of columns 8 n to 8
/// n + 7. Between `begin_group_products` and `end_group_products` nothing else touches c.
__device__ inline void multiply_group_e4m3(float (&c)[16][4], SharedAddress a, SharedAddress b,
                                           bool accumulate) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // Swizzle of 128 bytes; groups of eight rows are 1024 bytes apart.
  const auto describe = [](SharedAddress address) {
    return static_cast<std::uint64_t>((address & 0x3ffffu) >> 4) | std::uint64_t{1} << 16 |
           std::uint64_t{64} << 32 | std::uint64_t{1} << 62;
  };
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
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
        "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
        "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]),
        "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]),
        "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]),
        "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]),
        "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
      : "l"(describe(a)), "l"(describe(b)), "r"(static_cast<int>(accumulate)));
#else
  __trap();  // jobs in FP8 are refused on such a device
#endif
}
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
/// Waits for the group's products.
__device__ inline void end_group_products(float (&c)[16][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int n = 0; n < 16; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
#endif
}

/// Asynchronous copies from global memory, complete when `wait_copies` returns: 16 bytes (both addresses
/// aligned) or 4. Writes zeros if not `valid`, without reading the source.
__device__ inline void copy_async_16(SharedAddress to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async_4(SharedAddress to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(valid ? 4 : 0)
               : "memory");
}
/// Waits for all copies of the calling thread. Copies of other threads are visible after a following barrier.
__device__ inline void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ inline void store_shared(SharedAddress to, std::uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ inline uint4 load_shared_16(SharedAddress from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}
__device__ inline void load_shared(SharedAddress from, float (&x)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from) : "memory");
}

/// threadIdx.x, read again at each call. Values derived from it are recomputed where they are used and take
/// no register between tiles.
__device__ inline int thread_now() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
/// Returns x in a way that hides it from the optimiser, so that values derived from it are computed here and
/// not kept in registers from before.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

#else

SharedAddress dynamic_shared();
void load_matrices(std::uint32_t (&x)[4], SharedAddress row);
void load_matrices_transposed(std::uint32_t (&x)[4], SharedAddress row);
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
void multiply_group_e4m3(float (&c)[16][4], SharedAddress a, SharedAddress b, bool accumulate);
void show_shared_to_groups();
void begin_group_products();
void end_group_products(float (&c)[16][4]);
void copy_async_16(SharedAddress to, const void* from, bool valid);
void copy_async_4(SharedAddress to, const void* from, bool valid);
void wait_copies();
void store_shared(SharedAddress to, std::uint32_t x);
uint4 load_shared_16(SharedAddress from);
void load_shared(SharedAddress from, float (&x)[2]);
inline int thread_now() { return static_cast<int>(threadIdx.x); }
inline int opaque(int x) { return x; }

#endif

}  // namespace trainerd::kernels::cuda
