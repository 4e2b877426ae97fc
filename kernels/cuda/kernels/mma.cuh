#pragma once

// The warp's matrix instructions as functions (PTX ISA 8.x, sections on mma, ldmatrix, cp.async; sm_80 and
// later). All 32 lanes call the warp-wide ones together. Compiled as plain C++ they are only declarations:
// the host emulation of the operator tests defines them from the ISA's tables.
//
// Contents of lane 4 g + t (g = 0..7, t = 0..3) of m16n8k16. A register holds two bf16 or fp16, the lower
// column or row in the low half:
//   A [16 x 16]: a0 = A[g][2t..]      a1 = A[g + 8][2t..]   a2 = A[g][2t + 8..]   a3 = A[g + 8][2t + 8..]
//   B [16 x 8]:  b0 = B[2t..][g]      b1 = B[2t + 8..][g]
//   C [16 x 8]:  c0, c1 = C[g][2t..]  c2, c3 = C[g + 8][2t..]   fp32
// So C of two neighbouring products of 8 columns, narrowed, is A of a product over these 16 columns.

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/tensor/dtype.h"

namespace trainerd::kernels::cuda {

/// An address of the block's shared memory, as the instructions take it.
using SharedAddress = std::uint32_t;

#ifdef __CUDACC__

/// The launch's dynamic shared memory.
__device__ inline SharedAddress dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char trainerd_dynamic_shared[];
  return static_cast<SharedAddress>(__cvta_generic_to_shared(trainerd_dynamic_shared));
}

/// Loads four 8 x 8 matrices of 2-byte elements. Lane 8 i + r passes the address of the 16 bytes of row r of
/// matrix i. x[i] = matrix i [g][2t..].
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

/// c += A B of elements of T: Bf16 or Fp16.
template <class T>
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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
/// Makes a group of the thread's copies since the last call. `wait_copies_but<N>` waits for all groups but
/// the last N.
__device__ inline void group_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void wait_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

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
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  DType dtype);
template <class T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply_add(c, a, b0, b1, DTypeOf<T>::value);
}
void copy_async_16(SharedAddress to, const void* from, bool valid);
void copy_async_4(SharedAddress to, const void* from, bool valid);
void wait_copies();
void group_copies();
void wait_copies_but(int groups);
template <int N>
void wait_copies_but() {
  wait_copies_but(N);
}
void store_shared(SharedAddress to, std::uint32_t x);
uint4 load_shared_16(SharedAddress from);
void load_shared(SharedAddress from, float (&x)[2]);
inline int thread_now() { return static_cast<int>(threadIdx.x); }
inline int opaque(int x) { return x; }

#endif

}  // namespace trainerd::kernels::cuda
