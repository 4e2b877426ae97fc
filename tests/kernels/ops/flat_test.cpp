#include <bit>
#include <limits>
#include <set>

#include "kernels/tensor/rng.h"
#include "tests/full.h"
#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

// One element, a tail, and several blocks with a tail.
constexpr std::int64_t kLengths[] = {1, 37, 2 * 16384 + 5};

std::vector<std::uint32_t> hash_of(Machine& m, const Tensor& x) {
  const Tensor out = m.empty(DType::i32, {2});
  m.backend().tensor_hash(m.stream(), {.x = x, .out = out});
  std::vector<std::uint32_t> words(2);
  std::memcpy(words.data(), read_bytes(out).data(), 8);
  return words;
}

/// The definition in kernels/cpu/reduce.cpp, one word at a time.
std::vector<std::uint32_t> defined_hash(const std::vector<std::uint8_t>& bytes) {
  const auto mix = [](std::uint32_t h) {
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ (h >> 16);
  };
  std::uint32_t first = 0, second = 0;
  for (std::size_t i = 0; i * 4 < bytes.size(); ++i) {
    std::uint32_t word = 0;
    for (std::size_t b = 0; b < 4 && i * 4 + b < bytes.size(); ++b)
      word |= static_cast<std::uint32_t>(bytes[i * 4 + b]) << (8 * b);
    const auto place = static_cast<std::uint32_t>(i);
    first += mix(word ^ mix(place * 0x9e3779b1u + 0x165667b1u));
    second += mix((word * 0x2c1b3c6du) ^ (place * 0x85ebca77u + 0x27d4eb2fu));
  }
  return {first ^ static_cast<std::uint32_t>(bytes.size()), second};
}

}  // namespace

TEST_CASE("add and scale match float64, in place too", "[flat]") {
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t n : kLengths) {
      const Values a = normal_values(n, 1, dtype), b = normal_values(n, 2, dtype);
      Values scaled = a;
      for (double& v : scaled) v *= 0.75;
      check_operator([&](Machine& m) {
        const Tensor x = m.tensor(dtype, {n}, a), y = m.tensor(dtype, {n}, b), out = m.empty(dtype, {n});
        m.backend().add(m.stream(), {.a = x, .b = y, .out = out});
        m.backend().add(m.stream(), {.a = x, .b = y, .out = y});
        m.backend().scale(m.stream(), {.x = x, .factor = 0.75f, .out = x});
        return std::vector<Output>{
            {"a + b", out, sum(a, b)}, {"b += a", y, sum(a, b)}, {"0.75 a", x, scaled}};
      });
    }
}

TEST_CASE("dropout depends on key and position only, and scales what it keeps", "[flat]") {
  const std::uint64_t key = 0x1234567890abcdefull, first = 1'000'000'007;
  const double rate = 0.3, scale = 65536.0 / (65536 - 19661);  // 0.3 x 65536 = 19660.8
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t n : kLengths) {
      const Values x = normal_values(n, 1, dtype);
      Values expected = x;
      for (std::size_t i = 0; i < x.size(); ++i) {
        // Eight elements share the four words of a philox call, low halves first.
        const std::uint64_t place = first + i;
        const auto words = kernels::philox(key, place / 8, 0);
        const std::uint32_t bits = words[place % 8 / 2] >> (16 * (place % 2)) & 0xffffu;
        expected[i] = bits < 19661 ? 0.0 : x[i] * scale;
      }
      if (n > 10'000) {  // within four standard deviations of a binomial
        const auto dropped = static_cast<double>(std::count(expected.begin(), expected.end(), 0.0));
        CHECK(std::abs(dropped / static_cast<double>(n) - rate) <
              4 * std::sqrt(rate * (1 - rate) / static_cast<double>(n)));
      }
      check_operator([&](Machine& m) {
        const Tensor in = m.tensor(dtype, {n}, x), out = m.empty(dtype, {n}), parts = m.empty(dtype, {n});
        kernels::Dropout args{
            .x = in, .out = out, .rate = static_cast<float>(rate), .key = key, .first = first};
        m.backend().dropout(m.stream(), args);
        // A part alone drops the same elements as in the whole.
        const std::int64_t cut = n / 3;
        for (const auto& [begin, count] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, n - cut}}) {
          if (count == 0) continue;
          args.x = in.rows(begin, count), args.out = parts.rows(begin, count);
          args.first = first + static_cast<std::uint64_t>(begin);
          m.backend().dropout(m.stream(), args);
        }
        args = {.x = in, .out = in, .rate = static_cast<float>(rate), .key = key, .first = first};
        m.backend().dropout(m.stream(), args);
        return std::vector<Output>{
            {"dropped", out, expected}, {"by parts", parts, expected}, {"in place", in, expected}};
      });
    }
}

TEST_CASE("cast rounds to nearest even and keeps infinities and NaNs", "[flat]") {
  // bf16 has 7 fraction bits: 1 + 2^-8 is a tie and rounds down to even; 1 + 3 * 2^-8 is a tie and rounds up
  // to even; values above a tie round up.
  const double inf = std::numeric_limits<double>::infinity();
  const Values in{
      1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-8 + 0x1p-20, -1 - 0x1p-8, inf, -inf, 0.0, 3.3895313892515355e38,
      3.4028e38};
  const Values expected{1.0, 1 + 0x1p-6, 1 + 0x1p-7, -1.0, inf, -inf, 0.0, 3.3895313892515355e38, inf};
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    const Tensor out = m.empty(DType::bf16, {9}), back = m.empty(DType::f32, {9}),
                 nan = m.empty(DType::bf16, {1});
    m.backend().cast(m.stream(), {.in = m.tensor(DType::f32, {9}, in), .out = out});
    CHECK(Machine::read(out) == expected);
    m.backend().cast(m.stream(), {.in = out, .out = back});
    CHECK(Machine::read(back) == expected);
    m.backend().cast(m.stream(), {.in = m.tensor(DType::f32, {1}, {std::nan("")}), .out = nan});
    CHECK(std::isnan(Machine::read(nan)[0]));
  }
}

TEST_CASE("cast to fp16 rounds to nearest even, keeps denormals, and overflows to infinity", "[flat]") {
  // fp16 has 10 fraction bits; 65520 is a tie between its largest number and 2^16; 2^-24 is its least one.
  const double inf = std::numeric_limits<double>::infinity();
  const Values in{1 + 0x1p-11, 1 + 3 * 0x1p-11, 65519,       65520,   -65520,
                  inf,         0x1p-24,         3 * 0x1p-25, 0x1p-25, -0x1p-14},
      expected{1.0, 1 + 0x1p-9, 65504, inf, -inf, inf, 0x1p-24, 0x1p-23, 0.0, -0x1p-14};
  for (const kernels::Isa isa : instruction_sets()) {
    Machine m(isa, 1);
    const Tensor out = m.empty(DType::f16, {10}), back = m.empty(DType::f32, {10}),
                 nan = m.empty(DType::f16, {1});
    m.backend().cast(m.stream(), {.in = m.tensor(DType::f32, {10}, in), .out = out});
    CHECK(Machine::read(out) == expected);
    m.backend().cast(m.stream(), {.in = out, .out = back});
    CHECK(Machine::read(back) == expected);
    m.backend().cast(m.stream(), {.in = m.tensor(DType::f32, {1}, {std::nan("")}), .out = nan});
    CHECK(std::isnan(Machine::read(nan)[0]));
  }
}

TEST_CASE("cast between dtypes rounds every element once", "[flat]") {
  for (const DType from : kActivationDtypes)
    for (const DType to : kActivationDtypes)
      for (const std::int64_t n : kLengths) {
        if (mixed(from, to)) continue;
        const Values x = normal_values(n, 3, from);
        check_operator([&](Machine& m) {
          const Tensor out = m.empty(to, {n});
          m.backend().cast(m.stream(), {.in = m.tensor(from, {n}, x), .out = out});
          CHECK(Machine::read(out) == rounded(x, to));
          return std::vector<Output>{{"cast", out, x}};
        });
      }
}

TEST_CASE("copy_rows copies columns, and deals the chunks of sequences to ranks and back", "[flat]") {
  using kernels::RowOrder;
  struct Size {
    std::int64_t ranks, sequences, chunk_rows, columns, in_column, out_column;
  };
  for (const DType from : kActivationDtypes)
    for (const DType to : kActivationDtypes)
      for (const Size s : {Size{1, 1, 1, 5, 0, 2}, Size{2, 3, 4, 16, 16, 8}, Size{3, 1, 7, 9, 1, 3},
                           Size{4, 2, 16, 136, 8, 0}})
        for (const RowOrder order :
             {RowOrder::kept, RowOrder::rank_to_sequence, RowOrder::sequence_to_rank}) {
          if (mixed(from, to)) continue;
          const std::int64_t rows = 2 * s.ranks * s.sequences * s.chunk_rows,
                             in_width = s.in_column + s.columns + 8, out_width = s.out_column + s.columns + 8;
          // By rank: each rank's first chunks, then its second ones; in each, sequence by sequence.
          std::vector<std::int64_t> by_rank;  // the rows by sequence
          for (std::int64_t rank = 0; rank < s.ranks; ++rank)
            for (const std::int64_t chunk : {rank, 2 * s.ranks - 1 - rank})
              for (std::int64_t sequence = 0; sequence < s.sequences; ++sequence)
                for (std::int64_t row = 0; row < s.chunk_rows; ++row)
                  by_rank.push_back((sequence * 2 * s.ranks + chunk) * s.chunk_rows + row);
          const Values x = normal_values(rows * in_width, 1, from),
                       before = normal_values(rows * out_width, 2, to);
          Values expected = before;
          for (std::int64_t i = 0; i < rows; ++i) {
            const std::int64_t other = by_rank[static_cast<std::size_t>(i)],
                               in = order == RowOrder::sequence_to_rank ? other : i,
                               out = order == RowOrder::rank_to_sequence ? other : i;
            for (std::int64_t c = 0; c < s.columns; ++c)
              expected[static_cast<std::size_t>(out * out_width + s.out_column + c)] =
                  x[static_cast<std::size_t>(in * in_width + s.in_column + c)];
          }
          check_operator([&](Machine& m) {
            const Tensor out = m.tensor(to, {rows, out_width}, before);
            m.backend().copy_rows(m.stream(), {.in = m.tensor(from, {rows, in_width}, x),
                                               .out = out,
                                               .columns = s.columns,
                                               .in_column = s.in_column,
                                               .out_column = s.out_column,
                                               .order = order,
                                               .ranks = s.ranks,
                                               .sequences = s.sequences});
            CHECK(Machine::read(out) == rounded(expected, to));
            return std::vector<Output>{};
          });
        }
}

TEST_CASE("sum_parts adds its parts in order in fp32, bit for bit, and then to the old value", "[flat]") {
  for (const auto& [dtype, out_dtype] : {std::pair(DType::f32, DType::f32),
                                         {DType::bf16, DType::f32},
                                         {DType::f32, DType::bf16},
                                         {DType::bf16, DType::bf16},
                                         {DType::f16, DType::f32},
                                         {DType::f32, DType::f16},
                                         {DType::f16, DType::f16}})
    for (const std::int64_t n : kLengths)
      for (const std::int64_t parts : {1, 2, 5})
        for (const kernels::WriteMode mode : {kernels::WriteMode::assign, kernels::WriteMode::accumulate}) {
          const Values x = normal_values(parts * n, 6, dtype), before = normal_values(n, 7, out_dtype);
          Values exact(before), expected(before);
          for (std::size_t i = 0; i < before.size(); ++i) {
            double wide = 0;
            auto sum = static_cast<float>(x[i]);
            for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p) {
              wide += x[p * before.size() + i];
              if (p > 0) sum += static_cast<float>(x[p * before.size() + i]);
            }
            const bool adds = mode == kernels::WriteMode::accumulate;
            exact[i] = adds ? before[i] + wide : wide;
            expected[i] = static_cast<double>(adds ? sum + static_cast<float>(before[i]) : sum);
          }
          expected = rounded(expected, out_dtype);
          check_operator([&, dtype = dtype, out_dtype = out_dtype](Machine& m) {
            const Tensor out = m.tensor(out_dtype, {n}, before);
            m.backend().sum_parts(
                m.stream(), {.x = m.tensor(dtype, {parts * n}, x), .out = out, .parts = parts, .mode = mode});
            CHECK(Machine::read(out) == expected);
            return std::vector<Output>{{"sum of parts", out, exact, parts + 1}};
          });
        }
}

TEST_CASE("block square sums are sums of squares of fixed blocks in double", "[reduce]") {
  for (const DType dtype : kActivationDtypes)
    for (const std::int64_t n : kLengths) {
      const Values x = normal_values(n, 4, dtype);
      Values expected(static_cast<std::size_t>(kernels::norm_blocks(n)), 0.0);
      for (std::size_t i = 0; i < x.size(); ++i) expected[i / kernels::kNormBlock] += x[i] * x[i];
      check_operator([&](Machine& m) {
        const Tensor sums = m.empty(DType::f64, {kernels::norm_blocks(n)});
        m.backend().block_square_sums(m.stream(), {.x = m.tensor(dtype, {n}, x), .sums = sums});
        return std::vector<Output>{{"sums", sums, expected, kernels::kNormBlock}};
      });
    }
}

TEST_CASE("ordered sum adds blocks of 1024 and then the blocks, in double, bit for bit", "[reduce]") {
  for (const std::int64_t n : kLengths) {
    const Values x = normal_values(n, 5, DType::f32);
    double total = 0;
    for (std::size_t begin = 0; begin < x.size(); begin += 1024) {
      double block = 0;
      for (std::size_t i = begin; i < std::min(x.size(), begin + 1024); ++i) block += x[i];
      total += block;
    }
    check_operator([&](Machine& m) {
      const Tensor in = m.tensor(DType::f32, {n}, x), out = m.empty(DType::f64, {1});
      const Tensor added = m.tensor(DType::f64, {1}, {10.0});
      kernels::OrderedSum args{.x = in, .out = out, .mode = kernels::WriteMode::assign};
      m.backend().ordered_sum(m.stream(), args);
      CHECK(m.scratch().high_water() == kernels::align_up(scratch_bytes(args, m.backend().target())));
      args.out = added;
      args.mode = kernels::WriteMode::accumulate;
      m.backend().ordered_sum(m.stream(), args);
      CHECK(Machine::read(out)[0] == total);
      CHECK(Machine::read(added)[0] == 10.0 + total);
      return std::vector<Output>{};
    });
  }
}

TEST_CASE("the tensor hash is the defined function of the bytes on every instruction set", "[reduce]") {
  for (const std::int64_t n : {1, 3, 4, 67, 3 * 65536 + 11}) {
    std::mt19937 generator(6);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(n));
    for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(generator());
    for (const kernels::Isa isa : instruction_sets())
      for (const int threads : {1, 3}) {
        Machine m(isa, threads);
        CHECK(hash_of(m, m.tensor(DType::u8, {n}, Values(bytes.begin(), bytes.end()))) ==
              defined_hash(bytes));
      }
  }
}

TEST_CASE("the tensor hash sees single bits, places and lengths", "[reduce]") {
  Machine m(kernels::Isa::portable, 1);
  std::set<std::vector<std::uint32_t>> seen;
  const Values zeros(64, 0.0);
  for (std::int64_t n = 1; n <= 64; ++n)
    seen.insert(hash_of(m, m.tensor(DType::u8, {n}, Values(zeros.begin(), zeros.begin() + n))));
  std::size_t bits = 0;
  for (std::size_t i = 0; i < 64; ++i)
    for (int bit = 0; bit < 8; ++bit) {
      // Two bits of each byte, and each bit in 16 bytes; all in full runs.
      if (!runs_full() && (i + static_cast<std::size_t>(bit)) % 4 != 0) continue;
      ++bits;
      Values x = zeros;
      x[i] = 1 << bit;
      seen.insert(hash_of(m, m.tensor(DType::u8, {64}, x)));
    }
  CHECK(bits == (runs_full() ? 512 : 128));
  CHECK(seen.size() == 64 + bits);
}

TEST_CASE("philox gives the published test vectors", "[init]") {
  // Random123's kat_vectors, philox4x32 with 10 rounds.
  using Words = std::array<std::uint32_t, 4>;
  CHECK(kernels::philox(0, 0, 0) == Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(kernels::philox(~0ull, ~0ull, ~0ull) == Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(kernels::philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull) ==
        Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("init_normal gives each element its own value whatever the shard, and 0 in padding", "[init]") {
  const std::int64_t rows = 50, columns = 37;  // logical sizes; the shards overlap the edges
  struct Shard {
    std::int64_t row, column, rows, columns;
  };
  for (const Shard s : {Shard{0, 0, 50, 37}, Shard{13, 5, 20, 11}, Shard{40, 30, 20, 10}, Shard{60, 0, 2, 37},
                        Shard{0, 0, 1, 1}})
    check_operator([&](Machine& m) {
      const Tensor x = m.empty(DType::f32, {s.rows, s.columns});
      m.backend().init_normal(m.stream(), {.x = x,
                                           .key = 42,
                                           .stddev = 0.5f,
                                           .mean = 0.25f,
                                           .row = s.row,
                                           .column = s.column,
                                           .rows = s.rows,
                                           .columns = s.columns,
                                           .logical_rows = rows,
                                           .logical_columns = columns});
      Values expected;
      for (std::int64_t r = s.row; r < s.row + s.rows; ++r)
        for (std::int64_t c = s.column; c < s.column + s.columns; ++c)
          expected.push_back(
              r < rows && c < columns
                  ? 0.25f + 0.5f * kernels::normal_at(42, static_cast<std::uint64_t>(r * columns + c))
                  : 0.0f);
      // A GPU has its own logarithm, sine and cosine.
      if (m.backend().target().kind == kernels::DeviceKind::cpu) CHECK(Machine::read(x) == expected);
      return std::vector<Output>{{"x", x, expected}};
    });
}

TEST_CASE("uniform initial values fill (-1, 1] evenly and do not depend on the shard", "[init]") {
  const std::int64_t rows = 300, columns = 211, n = rows * columns;
  const auto draw = [&](Machine& m, const Tensor& x, std::int64_t row, std::int64_t column) {
    m.backend().init_normal(m.stream(), {.x = x,
                                         .draw = kernels::Draw::uniform,
                                         .key = 5,
                                         .stddev = 2,
                                         .mean = 1,
                                         .row = row,
                                         .column = column,
                                         .rows = x.size(0),
                                         .columns = x.size(1),
                                         .logical_rows = rows,
                                         .logical_columns = columns});
  };
  Machine m(kernels::Isa::portable, 2);
  const Tensor whole = m.empty(DType::f32, {rows, columns});
  draw(m, whole, 0, 0);
  const Values values = Machine::read(whole);
  CHECK(*std::min_element(values.begin(), values.end()) > -1);
  CHECK(*std::max_element(values.begin(), values.end()) <= 3);
  // Counts of 16 bins are within four standard deviations.
  std::array<double, 16> bins{};
  for (const double v : values) bins[static_cast<std::size_t>(std::min(15.0, (v + 1) * 4))] += 1;
  const double each = static_cast<double>(n) / 16;
  for (const double count : bins) CHECK(std::abs(count - each) < 4 * std::sqrt(each));
  check_operator([&](Machine& other) {
    const Tensor part = other.empty(DType::f32, {7, 12});
    draw(other, part, 290, 205);
    Values expected;
    for (std::int64_t r = 290; r < 297; ++r)
      for (std::int64_t c = 205; c < 217; ++c)
        expected.push_back(c < columns ? values[static_cast<std::size_t>(r * columns + c)] : 0);
    CHECK(Machine::read(part) == expected);
    return std::vector<Output>{};
  });
}

TEST_CASE("init_normal is standard normal", "[init]") {
  Machine m(kernels::Isa::portable, 2);
  const std::int64_t n = 200001;
  const Tensor x = m.empty(DType::f32, {n});
  m.backend().init_normal(m.stream(), {.x = x,
                                       .key = 7,
                                       .stddev = 1,
                                       .mean = 0,
                                       .row = 0,
                                       .column = 0,
                                       .rows = 1,
                                       .columns = n,
                                       .logical_rows = 1,
                                       .logical_columns = n});
  double moments[5] = {};
  for (const double v : Machine::read(x)) {
    double power = 1;
    for (double& moment : moments) {
      moment += power / static_cast<double>(n);
      power *= v;
    }
  }
  // Four standard deviations of the moments' estimates: sqrt(1/n), sqrt(2/n), sqrt(15/n), sqrt(96/n).
  const double unit = 4 / std::sqrt(static_cast<double>(n));
  CHECK(std::abs(moments[1]) < unit);
  CHECK(std::abs(moments[2] - 1) < unit * std::sqrt(2.0));
  CHECK(std::abs(moments[3]) < unit * std::sqrt(15.0));
  CHECK(std::abs(moments[4] - 3) < unit * std::sqrt(96.0));
}

}  // namespace trainerd::test
