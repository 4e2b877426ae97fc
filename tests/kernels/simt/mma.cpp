// The matrix instructions of warps and warp groups on the host, written from the tables of the PTX ISA
// (fragments of mma.m16n8k16 with bf16 and fp16, of wgmma.m64nNk16 and of ldmatrix x4, canonical layouts of
// wgmma's operands, rules of cp.async and of the proxies), independent of the kernels.

#include "kernels/cuda/kernels/warp_group.cuh"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/kernels/simt/simt.h"

namespace trainerd::test::simt {
namespace {

MatrixCounts counts;

/// An IEEE half by its bits: 1 sign, 5 of exponent with bias 15, 10 of mantissa.
double half(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
  double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) magnitude = mantissa == 0 ? INFINITY : std::nan("");
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double element(std::uint32_t pair, int which, bool fp16) {
  const std::uint32_t bits = which == 0 ? pair & 0xffffu : pair >> 16;
  return fp16 ? half(bits) : static_cast<double>(std::bit_cast<float>(bits << 16));
}

struct Multiply {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
  bool fp16;
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
      A[i % 4 < 2 ? group : group + 8][in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)] =
          element(x.a[i / 2], i % 2, x.fp16);
    for (int i = 0; i < 4; ++i)
      B[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group] = element(x.b[i / 2], i % 2, x.fp16);
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

/// A product of a warp group that has been issued by a thread. It may run at any time until its thread has
/// waited for it: its operands must be the same from its issue to the wait, and its sums are not read before.
struct GroupMultiply {
  float (*c)[4];
  std::uint64_t a, b;  ///< descriptors
  kernels::cuda::GroupElement element;
  int a_order, b_order;
  bool accumulate;
  std::vector<double> left, right;  ///< by summand: what a warp's rows and all columns were when it began
  bool fp8() const { return element == kernels::cuda::GroupElement::e4m3; }
  auto operands() const { return std::tie(a, b, element, a_order, b_order, accumulate); }
};
/// In batches, the last of which has not ended. By thread of the block.
std::deque<std::vector<GroupMultiply>> group_products[1024];
/// The descriptors of all products of each warp.
std::vector<std::pair<std::uint64_t, std::uint64_t>> issued[32];
bool hidden_writes[1024];  ///< a thread has written shared memory that it has not shown to the groups'
                           ///< products
bool may_multiply[1024];   ///< a thread has begun products and not ended them

/// Element (`outer`, `k`) of an operand by its descriptor: bits 0-13 are the address, 16-29 the leading and
/// 32-45 the stride byte offset, each over 16; 49-51 the base offset; 62-63 the swizzle mode, 1 for 128
/// bytes, which combines bits 4 to 6 of an address with bits 7 to 9. In elements of T to 16 bytes the
/// canonical layouts are
/// ((8,m),(T,2k)):((8T,SBO),(1,T)) and ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO)).
double group_element(std::uint64_t descriptor, kernels::cuda::GroupElement type, int order, int outer,
                     int k) {
  const auto field = [&](int from, int bits) {
    return static_cast<int>(descriptor >> from & ((std::uint64_t{1} << bits) - 1));
  };
  const int start = field(0, 14) * 16, leading = field(16, 14) * 16, stride = field(32, 14) * 16,
            bytes = type == kernels::cuda::GroupElement::e4m3 ? 1 : 2;
  if (field(62, 2) != 1 || field(49, 3) != 0)
    fail("the swizzle of an operand of a warp group is not of 128 bytes");
  if (start % (order == 0 ? 32 : 1024) != 0 || start % 1024 > 96)
    fail("an operand of a warp group does not begin at a row of 128 bytes whose place is known");
  const int place = order == 0 ? outer / 8 * stride + outer % 8 * 128 + k * bytes
                               : outer / 64 * leading + outer % 64 * bytes + k / 8 * stride + k % 8 * 128;
  const auto address = static_cast<std::uint32_t>(start + place), swizzled = address ^ (address >> 3 & 0x70u);
  if (type == kernels::cuda::GroupElement::e4m3)
    return e4m3(static_cast<std::uint32_t>(*shared_at(swizzled, 1)));
  std::uint16_t bits;
  std::memcpy(&bits, shared_at(swizzled, 2), 2);
  return element(bits, 0, type == kernels::cuda::GroupElement::fp16);
}

int columns_of(const GroupMultiply& x) { return x.fp8() ? 128 : 256; }
int summands_of(const GroupMultiply& x) { return x.fp8() ? 32 : 16; }

/// What the product of one warp reads.
void read_operands(GroupMultiply& x, int warp) {
  for (int k = 0; k < summands_of(x); ++k) {
    for (int row = 0; row < 16; ++row)
      x.left.push_back(group_element(x.a, x.element, x.a_order, 16 * warp + row, k));
    for (int column = 0; column < columns_of(x); ++column)
      x.right.push_back(group_element(x.b, x.element, x.b_order, column, k));
  }
}

bool same_bits(const std::vector<double>& x, const std::vector<double>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
}

/// The part of one warp of a product. Element 4 n + i of a lane: row 16 warp + g, + 8 from i = 2 on; column 8
/// n
/// + 2 t + (i & 1).
void multiply_group(const std::vector<GroupMultiply*>& lanes, int warp) {
  const GroupMultiply& x = *lanes[0];
  GroupMultiply now = x;
  now.left.clear(), now.right.clear();
  read_operands(now, warp);
  if (!same_bits(now.left, x.left) || !same_bits(now.right, x.right))
    fail("an operand of a warp group changes while its product may run");
  const auto columns = static_cast<std::size_t>(columns_of(x));
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t n = 0; n < columns / 8; ++n)
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t row = lane / 4 + (i < 2 ? 0 : 8), column = 8 * n + lane % 4 * 2 + (i & 1);
        float& c = lanes[lane]->c[n][i];
        double sum = x.accumulate ? c : 0;
        for (std::size_t k = 0; k < x.left.size() / 16; ++k)
          sum += x.left[k * 16 + row] * x.right[k * columns + column];
        c = static_cast<float>(sum);
      }
}

struct GroupWait {
  int thread, batches;
};

void issue_group(void* const* lanes) {
  auto& first = *static_cast<GroupMultiply*>(lanes[0]);
  for (int lane = 1; lane < 32; ++lane)
    if (static_cast<const GroupMultiply*>(lanes[lane])->operands() != first.operands())
      fail("the threads of a warp group issue different products");
  if (std::any_of(std::begin(hidden_writes), std::end(hidden_writes), [](bool hidden) { return hidden; }))
    fail("a product of a warp group begins before writes to shared memory have been shown to it");
  const unsigned warp = threadIdx.x / 32;
  read_operands(first, static_cast<int>(warp % 4));
  issued[warp].emplace_back(first.a, first.b);
  ++counts.products;
}

void wait_group(void* const* lanes) {
  const auto& first = *static_cast<const GroupWait*>(lanes[0]);
  const auto batches = static_cast<std::size_t>(first.batches);
  const auto of = [&](int lane) -> auto& {
    return group_products[static_cast<const GroupWait*>(lanes[lane])->thread];
  };
  while (of(0).size() > batches + 1) {  // the last one has not ended
    for (std::size_t i = 0; i < of(0).front().size(); ++i) {
      std::vector<GroupMultiply*> whole;
      for (int lane = 0; lane < 32; ++lane) whole.push_back(&of(lane).front().at(i));
      multiply_group(whole, first.thread / 32 % 4);
    }
    for (int lane = 0; lane < 32; ++lane) of(lane).pop_front();
  }
}

void issue(GroupMultiply product) {
  static const char instruction = 0;
  if (!may_multiply[threadIdx.x]) fail("a product of a warp group is not between its begin and its end");
  together(&instruction, &product, issue_group);
  auto& batches = group_products[threadIdx.x];
  if (batches.empty()) batches.emplace_back();
  batches.back().push_back(std::move(product));
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
/// In groups, the last of which has not ended.
std::deque<std::vector<Copy>> started_copies[1024];  // by thread of the block

void start_copy(const Copy& copy) {
  if (copy.valid && reinterpret_cast<std::uintptr_t>(copy.from) % copy.bytes != 0)
    fail("the source of an asynchronous copy is not aligned");
  std::memset(shared_at(copy.to, copy.bytes), 0xff, copy.bytes);
  auto& groups = started_copies[threadIdx.x];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back(copy);
  ++counts.copies;
}

/// Completes the copies of the first group.
void finish_copies(std::deque<std::vector<Copy>>& groups) {
  for (const Copy& c : groups.front()) {
    std::byte* const to = shared_at(c.to, c.bytes);
    if (c.valid) std::memcpy(to, c.from, c.bytes);
    else std::memset(to, 0, c.bytes);
    hidden_writes[threadIdx.x] = true;
  }
  groups.pop_front();
}

}  // namespace

MatrixCounts matrix_counts() { return counts; }

void check_asynchronous() {
  const auto left = [](const auto& groups) {
    return std::any_of(groups.begin(), groups.end(), [](const auto& group) { return !group.empty(); });
  };
  for (auto& groups : started_copies) {
    if (left(groups)) fail("a block ends with copies for which no thread has waited");
    groups.clear();
  }
  for (auto& batches : group_products) {
    if (left(batches)) fail("a block ends with products for which no thread has waited");
    batches.clear();
  }
  // The warps of a group issue the same products on the same columns, and on rows of their own.
  for (std::size_t warp = 0; warp < std::size(issued); ++warp)
    if (!issued[warp].empty() && issued[warp] != issued[warp / 4 * 4])
      fail("the warps of a group issue different products");
  for (auto& of_warp : issued) of_warp.clear();
  std::fill(std::begin(hidden_writes), std::end(hidden_writes), false);
  std::fill(std::begin(may_multiply), std::end(may_multiply), false);
}

}  // namespace trainerd::test::simt

namespace trainerd::kernels::cuda {

namespace simt = test::simt;

SharedAddress dynamic_shared() { return simt::kSharedBegin; }

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

void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  DType dtype) {
  static const char instruction = 0;
  simt::Multiply operands{c, a, {b0, b1}, dtype == DType::f16};
  simt::together(&instruction, &operands, simt::multiply);
}

void group_product(float (*c)[4], std::uint64_t a, std::uint64_t b, GroupElement element, int a_order,
                   int b_order, bool accumulate) {
  simt::issue({c, a, b, element, a_order, b_order, accumulate, {}, {}});
}
void show_shared_to_groups() { simt::hidden_writes[threadIdx.x] = false; }
void begin_group_products() { simt::may_multiply[threadIdx.x] = true; }
void end_group_products() {
  simt::may_multiply[threadIdx.x] = false;
  auto& batches = simt::group_products[threadIdx.x];
  if (batches.empty()) batches.emplace_back();
  batches.emplace_back();
}
void wait_group_products_but(int batches) {
  static const char instruction = 0;
  simt::GroupWait operands{static_cast<int>(threadIdx.x), batches};
  simt::together(&instruction, &operands, simt::wait_group);
}

void copy_async_16(SharedAddress to, const void* from, bool valid) {
  simt::start_copy({to, from, 16, valid});
}
void copy_async_4(SharedAddress to, const void* from, bool valid) { simt::start_copy({to, from, 4, valid}); }

void wait_copies() {
  auto& groups = simt::started_copies[threadIdx.x];
  while (!groups.empty()) simt::finish_copies(groups);
}
void group_copies() {
  auto& groups = simt::started_copies[threadIdx.x];
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}
void wait_copies_but(int count) {
  auto& groups = simt::started_copies[threadIdx.x];
  while (groups.size() > static_cast<std::size_t>(count) + 1) simt::finish_copies(groups);
}

void store_shared(SharedAddress to, std::uint32_t x) {
  std::memcpy(simt::shared_at(to, 4), &x, 4);
  simt::hidden_writes[threadIdx.x] = true;
}
uint4 load_shared_16(SharedAddress from) {
  uint4 x;
  std::memcpy(&x, simt::shared_at(from, 16), 16);
  return x;
}
void load_shared(SharedAddress from, float (&x)[2]) { std::memcpy(x, simt::shared_at(from, 8), 8); }

}  // namespace trainerd::kernels::cuda
