// Blocks of longer sequences: any split of packed documents into blocks of queries and keys, in any order,
// gives the whole.

#include <numeric>
#include <tuple>

#include "tests/kernels/attention_oracle.h"

namespace trainerd::test {
namespace {

using kernels::AttentionBlock;
using kernels::AttentionRows;
using kernels::HeadView;
using kernels::WriteMode;

/// Elements before and between the rows of heads in a test's views. No operator may read or write them.
constexpr std::int64_t kGap = 8;

/// Columns [column, column + width) of rows [begin, begin + count) of a matrix of `columns`.
Values part(const Values& x, std::int64_t columns, std::int64_t begin, std::int64_t count,
            std::int64_t column, std::int64_t width) {
  Values values;
  for (std::int64_t r = begin; r < begin + count; ++r)
    for (std::int64_t c = column; c < column + width; ++c) values.push_back(at(x, r * columns + c));
  return values;
}

/// Rows in a separate buffer, like another rank's keys: `kGap` elements, the heads, `kGap` elements.
HeadView view(Machine& m, DType dtype, const Values& values, std::int64_t heads, std::int64_t head_size) {
  const std::int64_t width = heads * head_size, rows = static_cast<std::int64_t>(values.size()) / width;
  Values padded(static_cast<std::size_t>(rows * (width + 2 * kGap)), std::nan(""));
  for (std::int64_t r = 0; r < rows; ++r)
    std::copy_n(values.begin() + r * width, width, padded.begin() + r * (width + 2 * kGap) + kGap);
  const Tensor x = m.tensor(dtype, {rows, width + 2 * kGap}, padded);
  HeadView v = kernels::heads_from(x, 0, heads, head_size);
  v.data += kGap * kernels::size_of(dtype);
  return v;
}

Values read(const HeadView& v) {
  const Tensor x{v.data - kGap * kernels::size_of(v.dtype), v.dtype, {v.rows, v.row_stride}};
  const Values all = Machine::read(x);
  const std::int64_t width = v.heads * v.head_size;
  Values gaps = part(all, v.row_stride, 0, v.rows, 0, kGap);
  for (const double gap : part(all, v.row_stride, 0, v.rows, kGap + width, kGap)) gaps.push_back(gap);
  CHECK(std::all_of(gaps.begin(), gaps.end(), [](double gap) { return std::isnan(gap); }));
  return part(all, v.row_stride, 0, v.rows, kGap, width);
}

/// Rows [begin, end) of the packed documents.
struct Block {
  std::int64_t begin, end;
  std::int64_t rows() const { return end - begin; }
};
using Blocks = std::vector<Block>;

Blocks random_blocks(std::int64_t tokens, std::int64_t count, std::mt19937_64& random) {
  std::vector<std::int64_t> cuts{0, tokens};
  while (static_cast<std::int64_t>(cuts.size()) <= count)
    cuts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tokens + 1)));
  std::sort(cuts.begin(), cuts.end());
  Blocks blocks;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) blocks.push_back({cuts[i], cuts[i + 1]});
  return blocks;
}

/// All documents as seen by a block of rows; many have no rows in it. Positions count from `first`, which
/// only shifts the values of `first_B`.
AttentionRows rows_of(Machine& m, const Problem& p, const Block& block, std::int64_t first) {
  const std::vector<std::int32_t> bounds = p.cu_seqlens();
  std::vector<std::int32_t> cu{0}, positions;
  std::int64_t longest = 0;
  for (std::size_t b = 0; b + 1 < bounds.size(); ++b) {
    const std::int64_t begin = std::clamp<std::int64_t>(bounds[b], block.begin, block.end),
                       end = std::clamp<std::int64_t>(bounds[b + 1], block.begin, block.end);
    cu.push_back(static_cast<std::int32_t>(end - block.begin));
    positions.push_back(static_cast<std::int32_t>(begin - bounds[b] - first));
    longest = std::max(longest, end - begin);
  }
  return {.cu_seqlens = m.ids(cu), .max_seqlen = longest, .first = first, .first_B = m.ids(positions)};
}

struct Results {
  Values out, lse, dq, dk, dv;
  auto all() const { return std::tie(out, lse, dq, dk, dv); }
};

/// A split into blocks, and the order of its pairs of blocks.
struct Split {
  Blocks queries, keys;
  std::vector<std::pair<std::size_t, std::size_t>> order;  ///< (block of queries, block of keys)

  Split(const Problem& p, std::int64_t query_blocks, std::int64_t key_blocks, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    queries = random_blocks(p.tokens(), query_blocks, random);
    keys = random_blocks(p.tokens(), key_blocks, random);
    for (std::size_t i = 0; i < queries.size(); ++i)
      for (std::size_t j = 0; j < keys.size(); ++j) order.emplace_back(i, j);
    std::shuffle(order.begin(), order.end(), random);
  }
};

struct Inputs {
  Values qkv, dout, out, lse;  ///< `out` and `lse`: inputs of the backward pass
};

/// Forward and backward over all pairs of blocks; sums over blocks have the dtype `sums`.
Results run_blocks(Machine& m, const Problem& p, const Split& split, const Inputs& in, DType dtype,
                   DType sums) {
  const std::int64_t E = p.heads.head_size, V = p.heads.values_size(), H = p.heads.heads,
                     K = p.heads.kv_heads, W = p.heads.columns(), O = H * V, T = p.tokens();
  const auto rows = [&](const Values& x, const Block& b, std::int64_t columns, std::int64_t column,
                        std::int64_t heads, std::int64_t size, DType as) {
    return view(m, as, part(x, columns, b.begin, b.rows(), column, heads * size), heads, size);
  };
  const auto empty = [&](const Block& b, std::int64_t heads, std::int64_t size) {
    return view(m, sums, Values(static_cast<std::size_t>(b.rows() * heads * size), std::nan("")), heads,
                size);
  };
  struct Side {
    AttentionRows rows;
    HeadView q = {}, k = {}, v = {}, out = {}, final_out = {}, dout = {}, dq = {}, dk = {}, dv = {};
    Tensor lse = {}, final_lse = {};
    bool begun = false;
  };
  std::vector<Side> queries, keys;
  for (const Block& b : split.queries)
    queries.push_back(
        {.rows = rows_of(m, p, b, 1000),
         .q = rows(in.qkv, b, W, 0, H, E, dtype),
         .out = empty(b, H, V),
         .final_out = rows(in.out, b, O, 0, H, V, sums),
         .dout = rows(in.dout, b, O, 0, H, V, dtype),
         .dq = empty(b, H, E),
         .lse = m.empty(DType::f32, {H, b.rows()}),
         .final_lse = m.tensor(DType::f32, {H, b.rows()}, part(in.lse, T, 0, H, b.begin, b.rows()))});
  for (const Block& b : split.keys)
    keys.push_back({.rows = rows_of(m, p, b, 990),
                    .k = rows(in.qkv, b, W, H * E, K, E, dtype),
                    .v = rows(in.qkv, b, W, (H + K) * E, K, V, dtype),
                    .dk = empty(b, K, E),
                    .dv = empty(b, K, V)});
  const auto mode = [](bool& begun) {
    return std::exchange(begun, true) ? WriteMode::accumulate : WriteMode::assign;
  };
  for (const auto& [i, j] : split.order) {
    Side &query = queries[i], &key = keys[j];
    const AttentionBlock block{.heads = p.heads,
                               .mask = p.mask,
                               .window = p.window,
                               .scale = static_cast<float>(p.scale()),
                               .softcap = static_cast<float>(p.softcap),
                               .sequences = static_cast<std::int64_t>(p.lengths.size()),
                               .queries = query.rows,
                               .keys = key.rows};
    const WriteMode query_mode = mode(query.begun), key_mode = mode(key.begun);
    m.backend().attention_forward(m.stream(), {.block = block,
                                               .q_THE = query.q,
                                               .k_TKE = key.k,
                                               .v_TKE = key.v,
                                               .out_THE = query.out,
                                               .lse_HT = query.lse,
                                               .mode = query_mode});
    m.backend().attention_backward(m.stream(), {.block = block,
                                                .q_THE = query.q,
                                                .k_TKE = key.k,
                                                .v_TKE = key.v,
                                                .out_THE = query.final_out,
                                                .lse_HT = query.final_lse,
                                                .dout_THE = query.dout,
                                                .dq_THE = query.dq,
                                                .dk_TKE = key.dk,
                                                .dv_TKE = key.dv,
                                                .dq_mode = query_mode,
                                                .dkv_mode = key_mode});
  }
  Results r;
  r.lse.resize(static_cast<std::size_t>(H * T));
  const auto append = [](Values& to, const Values& x) { to.insert(to.end(), x.begin(), x.end()); };
  for (std::size_t i = 0; i < queries.size(); ++i) {
    append(r.out, read(queries[i].out));
    append(r.dq, read(queries[i].dq));
    const Values lse = Machine::read(queries[i].lse);
    const Block& b = split.queries[i];
    for (std::int64_t n = 0; n < H * b.rows(); ++n)
      at(r.lse, n / b.rows() * T + b.begin + n % b.rows()) = at(lse, n);
  }
  for (const Side& key : keys) {
    append(r.dk, read(key.dk));
    append(r.dv, read(key.dv));
  }
  CHECK(m.scratch().top() == 0);
  return r;
}

struct Reference {
  Inputs in;
  Results whole;
};

/// Whole attention in float64. The backward pass gets its output in dtype `sums` and its log-sum-exp in fp32.
Reference reference_of(const Problem& p, DType dtype, DType sums) {
  const std::int64_t T = p.tokens(), E = p.heads.head_size, V = p.heads.values_size(), H = p.heads.heads,
                     K = p.heads.kv_heads, W = p.heads.columns();
  Reference r;
  r.in.qkv = normal_values(T * W, 11, dtype);
  r.in.dout = normal_values(T * H * V, 12, dtype);
  const Forward f = forward(p, r.in.qkv, dtype);
  r.in.out = rounded(f.out.value, sums);
  r.in.lse = rounded(f.lse.value, DType::f32);
  const Values dqkv = backward(p, r.in.qkv, r.in.out, r.in.lse, r.in.dout, dtype).value;
  r.whole = {.out = f.out.value,
             .lse = f.lse.value,
             .dq = part(dqkv, W, 0, T, 0, H * E),
             .dk = part(dqkv, W, 0, T, H * E, K * E),
             .dv = part(dqkv, W, 0, T, (H + K) * E, K * V)};
  return r;
}

/// |actual - reference| / |reference| of the whole tensors.
double relative_error(const Values& actual, const Values& reference) {
  if (actual.size() != reference.size()) return std::numeric_limits<double>::infinity();
  Values difference(actual.size());
  for (std::size_t i = 0; i < actual.size(); ++i) difference[i] = actual[i] - reference[i];
  return std::sqrt(dot(difference, difference) / dot(reference, reference));
}

/// Whole tensors agree within 1e-6, and each element within the tolerance of fp32 operators.
void check_fp32(const Results& actual, const Results& reference, std::int64_t length) {
  const auto check = [&](const char* name, const Values& a, const Values& r) {
    INFO(name);
    CHECK(relative_error(a, r) <= 1e-6);
    CHECK(scaled_error(a, r) <= tolerance(DType::f32, length));
  };
  check("out", actual.out, reference.out);
  check("lse", actual.lse, reference.lse);
  check("dq", actual.dq, reference.dq);
  check("dk", actual.dk, reference.dk);
  check("dv", actual.dv, reference.dv);
}

/// Weights and gradients of scores are rounded to bf16 once before their product, results `roundings` times.
void check_bf16(const Results& actual, const Results& reference, std::int64_t length, int roundings) {
  const double each = (1 + roundings) * tolerance(DType::bf16, length);
  CHECK(relative_error(actual.lse, reference.lse) <= 1e-6);
  CHECK(scaled_error(actual.out, reference.out) <= each);
  for (const auto& [a, r] :
       {std::pair(&actual.dq, &reference.dq), {&actual.dk, &reference.dk}, {&actual.dv, &reference.dv}})
    CHECK(scaled_error(*a, *r) <= 2 * each);
}

const Problem kProblems[] = {
    {{.heads = 4, .kv_heads = 2, .head_size = 16}, {61, 7, 0, 90}, MaskKind::causal},
    {{.heads = 4, .kv_heads = 2, .head_size = 16}, {61, 7, 0, 90}, MaskKind::causal, 19},
    {{.heads = 2, .kv_heads = 1, .head_size = 8}, {40, 33}, MaskKind::none},
    {{.heads = 3, .kv_heads = 3, .head_size = 7}, {75}, MaskKind::causal},
    {{.heads = 4, .kv_heads = 2, .head_size = 16}, {61, 7, 0, 90}, MaskKind::causal, 19, 3.0},
    {{.heads = 2, .kv_heads = 2, .head_size = 24, .value_size = 8}, {61, 7, 0, 90}, MaskKind::causal},
};

}  // namespace

TEST_CASE("any split into blocks, in any order, equals the whole", "[attention]") {
  for (const Problem& p : kProblems) {
    const Reference fp32 = reference_of(p, DType::f32, DType::f32),
                    bf16 = reference_of(p, DType::bf16, DType::f32);
    for (const kernels::Isa isa : instruction_sets())
      for (const std::uint64_t seed : {1, 2}) {
        if (!runs_full() && seed != 1 + p.lengths.size() % 2) continue;
        INFO(kernels::to_string(isa) << ", " << p.lengths.size() << " documents, head " << p.heads.head_size
                                     << ", window " << p.window << ", seed " << seed);
        const Split split(p, 3, 4, seed);
        Machine m(isa, static_cast<int>(1 + seed));
        check_fp32(run_blocks(m, p, split, fp32.in, DType::f32, DType::f32), fp32.whole, p.longest());
        check_bf16(run_blocks(m, p, split, bf16.in, DType::bf16, DType::f32), bf16.whole, p.longest(), 1);
      }
  }
}

TEST_CASE("blocks merge in bf16, rounding at each", "[attention]") {
  const Problem& p = kProblems[0];
  const Reference bf16 = reference_of(p, DType::bf16, DType::bf16);
  for (const kernels::Isa isa : instruction_sets()) {
    const Split split(p, 2, 3, 5);
    Machine m(isa, 1);
    check_bf16(run_blocks(m, p, split, bf16.in, DType::bf16, DType::bf16), bf16.whole, p.longest(), 3);
  }
}

TEST_CASE("blocks in one order give the same bits", "[attention]") {
  const Problem& p = kProblems[1];
  for (const DType dtype : kActivationDtypes) {
    const Reference r = reference_of(p, dtype, DType::f32);
    for (const kernels::Isa isa : instruction_sets()) {
      const Split split(p, 3, 3, 9);
      Machine one(isa, 1), three(isa, 3);
      CHECK(run_blocks(one, p, split, r.in, dtype, DType::f32).all() ==
            run_blocks(three, p, split, r.in, dtype, DType::f32).all());
    }
  }
}

TEST_CASE("one block in separate buffers gives the bits of the merged projection", "[attention]") {
  for (const Problem& p : kProblems)
    for (const DType dtype : kActivationDtypes) {
      const Reference r = reference_of(p, dtype, dtype);
      const std::int64_t T = p.tokens(), E = p.heads.head_size, V = p.heads.values_size(), H = p.heads.heads,
                         K = p.heads.kv_heads, W = p.heads.columns();
      for (const kernels::Isa isa : instruction_sets()) {
        Machine m(isa, 2);
        const Results block = run_blocks(m, p, Split(p, 1, 1, 1), r.in, dtype, dtype);
        const Tensor x = m.tensor(dtype, {T, W}, r.in.qkv), dx = m.empty(dtype, {T, W}),
                     y = m.empty(dtype, {T, H * V}), lse = m.empty(DType::f32, {H, T}),
                     final_y = m.tensor(dtype, {T, H * V}, r.in.out),
                     final_lse = m.tensor(DType::f32, {H, T}, r.in.lse),
                     dy = m.tensor(dtype, {T, H * V}, r.in.dout);
        const AttentionBlock whole = block_of(p, m.ids(p.cu_seqlens()));
        m.backend().attention_forward(m.stream(), {.block = whole,
                                                   .q_THE = p.heads.queries_of(x),
                                                   .k_TKE = p.heads.keys_of(x),
                                                   .v_TKE = p.heads.values_of(x),
                                                   .out_THE = p.heads.outputs_of(y),
                                                   .lse_HT = lse});
        m.backend().attention_backward(m.stream(), {.block = whole,
                                                    .q_THE = p.heads.queries_of(x),
                                                    .k_TKE = p.heads.keys_of(x),
                                                    .v_TKE = p.heads.values_of(x),
                                                    .out_THE = p.heads.outputs_of(final_y),
                                                    .lse_HT = final_lse,
                                                    .dout_THE = p.heads.outputs_of(dy),
                                                    .dq_THE = p.heads.queries_of(dx),
                                                    .dk_TKE = p.heads.keys_of(dx),
                                                    .dv_TKE = p.heads.values_of(dx)});
        const Values dqkv = Machine::read(dx);
        const Results merged{.out = Machine::read(y),
                             .lse = Machine::read(lse),
                             .dq = part(dqkv, W, 0, T, 0, H * E),
                             .dk = part(dqkv, W, 0, T, H * E, K * E),
                             .dv = part(dqkv, W, 0, T, (H + K) * E, K * V)};
        CHECK(block.all() == merged.all());
        // Merging into an empty result gives the same result.
        const Tensor nothing = m.tensor(dtype, y.shape, Values(static_cast<std::size_t>(T * H * V), 0.0)),
                     none = m.tensor(
                         DType::f32, lse.shape,
                         Values(static_cast<std::size_t>(H * T), -std::numeric_limits<double>::infinity()));
        m.backend().attention_forward(m.stream(), {.block = whole,
                                                   .q_THE = p.heads.queries_of(x),
                                                   .k_TKE = p.heads.keys_of(x),
                                                   .v_TKE = p.heads.values_of(x),
                                                   .out_THE = p.heads.outputs_of(nothing),
                                                   .lse_HT = none,
                                                   .mode = WriteMode::accumulate});
        CHECK(std::tie(merged.out, merged.lse) == std::tuple(Machine::read(nothing), Machine::read(none)));
      }
    }
}

TEST_CASE("a query without keys gives zeros, and does not change earlier results", "[attention]") {
  const kernels::HeadGeometry heads{.heads = 2, .kv_heads = 1, .head_size = 8};
  constexpr std::int64_t kRows = 20, kKeys = 9, kWidth = 16;
  const double none = -std::numeric_limits<double>::infinity();
  for (const DType dtype : kActivationDtypes)
    for (const kernels::Isa isa : instruction_sets()) {
      Machine m(isa, 1);
      const Tensor q = m.tensor(dtype, {kRows, kWidth}, normal_values(kRows * kWidth, 1, dtype)),
                   k = m.tensor(dtype, {kKeys, 8}, normal_values(kKeys * 8, 2, dtype)),
                   y = m.empty(dtype, {kRows, kWidth}), lse = m.empty(DType::f32, {2, kRows});
      // Query i is at position i, key j at 12 + j: queries 0 to 11 see no key.
      const kernels::AttentionForward f{
          .block = {.heads = heads,
                    .sequences = 1,
                    .queries = {.cu_seqlens = m.ids({0, kRows}), .max_seqlen = kRows},
                    .keys = {.cu_seqlens = m.ids({0, kKeys}), .max_seqlen = kKeys, .first = 12}},
          .q_THE = heads.outputs_of(q),
          .k_TKE = kernels::heads_from(k, 0, 1, 8),
          .v_TKE = kernels::heads_from(k, 0, 1, 8),
          .out_THE = heads.outputs_of(y),
          .lse_HT = lse};
      m.backend().attention_forward(m.stream(), f);
      const Values out = Machine::read(y), sums = Machine::read(lse);
      for (std::int64_t row = 0; row < kRows; ++row)
        for (std::int64_t head = 0; head < 2; ++head) {
          CHECK((at(sums, head * kRows + row) == none) == (row < 12));
          for (std::int64_t e = 0; e < 8; ++e)
            CHECK((at(out, row * kWidth + head * 8 + e) == 0.0) == (row < 12));
        }
      // Rows without a key keep their bits, including negative zeros.
      Values earlier = normal_values(kRows * kWidth, 3, dtype);
      for (std::size_t i = 0; i < earlier.size(); i += 3) earlier[i] = -0.0;
      const Values earlier_lse = normal_values(2 * kRows, 4, DType::f32);
      kernels::AttentionForward merge = f;
      const Tensor z = m.tensor(dtype, y.shape, earlier),
                   z_lse = m.tensor(DType::f32, lse.shape, earlier_lse);
      const std::vector<std::byte> before = read_bytes(z);
      merge.out_THE = heads.outputs_of(z);
      merge.lse_HT = z_lse;
      merge.mode = WriteMode::accumulate;
      m.backend().attention_forward(m.stream(), merge);
      const std::vector<std::byte> kept = read_bytes(z);
      CHECK(std::equal(before.begin(), before.begin() + 12 * kWidth * kernels::size_of(dtype), kept.begin()));
      const Values after = Machine::read(z_lse);
      for (std::int64_t head = 0; head < 2; ++head)
        for (std::int64_t row = 0; row < kRows; ++row) {
          const double l = at(earlier_lse, head * kRows + row), s = at(sums, head * kRows + row);
          if (row < 12) CHECK(at(after, head * kRows + row) == l);
          else
            CHECK(at(after, head * kRows + row) == Approx(std::log(std::exp(l) + std::exp(s))).epsilon(1e-6));
        }
    }
}

}  // namespace trainerd::test
