// The warp's matrix instructions on the host, written from the tables of the PTX ISA (fragments of
// mma.m16n8k16 with bf16, of wgmma.m64n128k32 with E4M3 and of ldmatrix x4, rules of cp.async), independent
// of the kernels.

#include "kernels/cuda/kernels/mma.cuh"

#include <bit>
#include <cmath>
#include <vector>

#include "tests/kernels/simt/simt.h"

namespace trainerd::test::simt {
namespace {

MatrixCounts counts;

float element(std::uint32_t pair, int which) {
  return std::bit_cast<float>(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

struct Multiply {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

/// Element i of a lane's fragment, with g = lane / 4 (groupID) and t = lane % 4 (threadID_in_group):
/// - A, i = 0..7: row g for i = 0, 1, 4, 5, else g + 8; column 2 t + (i & 1), + 8 from i = 4 on
/// - B, i = 0..3: row 2 t + (i & 1), + 8 from i = 2 on; column g
/// - C, i = 0..3: row g, + 8 from i = 2 on; column 2 t + (i & 1)
void multiply(void* const* lanes) {
  double A[16][16], B[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& x = *static_cast<const Multiply*>(lanes[lane]);
    const int group = lane / 4, in_group = lane % 4;
    for (int i = 0; i < 8; ++i)
      A[i % 4 < 2 ? group : group + 8][in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)] = element(x.a[i / 2], i % 2);
    for (int i = 0; i < 4; ++i)
      B[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group] = element(x.b[i / 2], i % 2);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& x = *static_cast<const Multiply*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + (i < 2 ? 0 : 8), column = lane % 4 * 2 + (i & 1);
      double sum = x.c[i];
      for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
      x.c[i] = static_cast<float>(sum);
    }
  }
  ++counts.products;
}

/// An E4M3 number by its bits: 1 sign, 4 of exponent with bias 7, 3 of mantissa; no infinity.
double e4m3(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3 & 15), mantissa = static_cast<int>(bits & 7);
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 128) != 0 ? -magnitude : magnitude;
}

struct GroupMultiply {
  float (*c)[4];
  std::uint32_t a, b;
  bool accumulate;
  int warp;  ///< of the group
};

/// Byte `k` of row `row` of an operand with swizzle mode 128 bytes, from the start address on: bits 4 to 6 of
/// an address are combined with bits 7 to 9.
std::uint32_t swizzled_byte(std::uint32_t start, int row, int k) {
  const std::uint32_t address = start + static_cast<std::uint32_t>(row * 128 + k);
  return static_cast<std::uint32_t>(*shared_at(address ^ (address >> 3 & 0x70u), 1));
}

/// wgmma m64n128k32, the part of one warp. Element 4 n + i of a lane: row 16 warp + g, + 8 from i = 2 on;
/// column 8 n + 2 t + (i & 1).
void multiply_group(void* const* lanes) {
  for (int lane = 0; lane < 32; ++lane) {
    const auto& x = *static_cast<const GroupMultiply*>(lanes[lane]);
    if (x.a / 1024 * 1024 + 96 < x.a || x.a % 32 != 0 || x.b % 32 != 0)
      fail("the operand of a warp group begins within a row of 128 bytes");
    for (int n = 0; n < 16; ++n)
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * x.warp + lane / 4 + (i < 2 ? 0 : 8), column = 8 * n + lane % 4 * 2 + (i & 1);
        double sum = x.accumulate ? x.c[n][i] : 0;
        for (int k = 0; k < 32; ++k)
          sum += e4m3(swizzled_byte(x.a, row, k)) * e4m3(swizzled_byte(x.b, column, k));
        x.c[n][i] = static_cast<float>(sum);
      }
  }
  ++counts.products;
}

struct Load {
  std::uint32_t* x;
  std::uint32_t row;
};

/// Threads 8 i .. 8 i + 7 give the row addresses of matrix i. Each thread gets elements 2 (lane % 4) and the
/// next one of row lane / 4 of each matrix.
template <bool kTransposed>
void load(void* const* lanes) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t elements[8][8];
    unsigned banks = 0;
    for (int row = 0; row < 8; ++row) {
      const std::uint32_t address = static_cast<const Load*>(lanes[matrix * 8 + row])->row;
      std::memcpy(elements[row], shared_at(address, 16), 16);
      banks |= 1u << address / 16 % 8;
    }
    if (banks != 0xff) ++counts.conflicts;
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      const std::uint32_t low = kTransposed ? elements[column][row] : elements[row][column],
                          high = kTransposed ? elements[column + 1][row] : elements[row][column + 1];
      static_cast<const Load*>(lanes[lane])->x[matrix] = low | high << 16;
    }
  }
  ++counts.loads;
}

/// A copy may arrive at any time before its thread has waited: the old bytes are lost at once, and the new
/// ones are written at the wait.
struct Copy {
  std::uint32_t to;
  const void* from;
  std::size_t bytes;
  bool valid;
};
std::vector<Copy> started_copies[1024];  // by thread of the block

void start_copy(const Copy& copy) {
  if (copy.valid && reinterpret_cast<std::uintptr_t>(copy.from) % copy.bytes != 0)
    fail("the source of an asynchronous copy is not aligned");
  std::memset(shared_at(copy.to, copy.bytes), 0xff, copy.bytes);
  started_copies[threadIdx.x].push_back(copy);
  ++counts.copies;
}

}  // namespace

MatrixCounts matrix_counts() { return counts; }

void check_copies() {
  for (const std::vector<Copy>& started : started_copies)
    if (!started.empty()) fail("a block ends with copies for which no thread has waited");
}

}  // namespace trainerd::test::simt

namespace trainerd::kernels::cuda {

namespace simt = test::simt;

SharedAddress dynamic_shared() { return 0; }

void load_matrices(std::uint32_t (&x)[4], SharedAddress row) {
  static const char instruction = 0;
  simt::Load operands{x, row};
  simt::together(&instruction, &operands, simt::load<false>);
}

void load_matrices_transposed(std::uint32_t (&x)[4], SharedAddress row) {
  static const char instruction = 0;
  simt::Load operands{x, row};
  simt::together(&instruction, &operands, simt::load<true>);
}

void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  static const char instruction = 0;
  simt::Multiply operands{c, a, {b0, b1}};
  simt::together(&instruction, &operands, simt::multiply);
}

void multiply_group_e4m3(float (&c)[16][4], SharedAddress a, SharedAddress b, bool accumulate) {
  static const char instruction = 0;
  simt::GroupMultiply operands{c, a, b, accumulate, static_cast<int>(threadIdx.x) / 32 % 4};
  simt::together(&instruction, &operands, simt::multiply_group);
}
void show_shared_to_groups() {}
void begin_group_products() {}
void end_group_products(float (&)[16][4]) {}

void copy_async_16(SharedAddress to, const void* from, bool valid) {
  simt::start_copy({to, from, 16, valid});
}
void copy_async_4(SharedAddress to, const void* from, bool valid) { simt::start_copy({to, from, 4, valid}); }

void wait_copies() {
  for (const simt::Copy& c : simt::started_copies[threadIdx.x]) {
    std::byte* const to = simt::shared_at(c.to, c.bytes);
    if (c.valid) std::memcpy(to, c.from, c.bytes);
    else std::memset(to, 0, c.bytes);
  }
  simt::started_copies[threadIdx.x].clear();
}

void store_shared(SharedAddress to, std::uint32_t x) { std::memcpy(simt::shared_at(to, 4), &x, 4); }
uint4 load_shared_16(SharedAddress from) {
  uint4 x;
  std::memcpy(&x, simt::shared_at(from, 16), 16);
  return x;
}
void load_shared(SharedAddress from, float (&x)[2]) { std::memcpy(x, simt::shared_at(from, 8), 8); }

}  // namespace trainerd::kernels::cuda
