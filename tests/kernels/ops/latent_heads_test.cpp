#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::HeadGeometry;

constexpr std::int64_t kPositions = 11;

/// Sizes of a call: R rotated elements of a head.
struct LatentCase {
  std::int64_t tokens, heads, head_size, value_size, rotated;
  HeadGeometry geometry() const { return {heads, heads, head_size, value_size}; }
  std::int64_t own() const { return head_size - rotated; }
  std::int64_t kv_columns() const { return heads * (own() + value_size); }
};

/// Aligned rows for vectors, and sizes that no vector divides.
constexpr LatentCase kCases[] = {
    {37, 4, 24, 16, 8}, {3, 16, 192, 128, 64}, {5, 3, 7, 5, 2}, {6, 1, 12, 8, 4}};

std::size_t place(std::int64_t i) { return static_cast<std::size_t>(i); }

Values table_of(const LatentCase& c) {
  Values table;
  for (std::int64_t s = 0; s < kPositions; ++s)
    for (const bool sine : {false, true})
      for (std::int64_t i = 0; i < c.rotated / 2; ++i) {
        const double angle = static_cast<double>(s) * std::pow(50.0, -static_cast<double>(i));
        table.push_back(sine ? std::sin(angle) : std::cos(angle));
      }
  return rounded(table, DType::f32);
}

std::vector<std::int32_t> positions_of(const LatentCase& c) {
  std::vector<std::int32_t> positions;
  for (std::int64_t t = 0; t < c.tokens; ++t)
    positions.push_back(static_cast<std::int32_t>(t * 7 % kPositions));
  return positions;
}

struct LatentInputs {
  Values q, kv, k_rope;
};

/// qkv of one token, by its definition: pairs (2 i, 2 i + 1) as complex numbers.
Values reference(const LatentCase& c, const LatentInputs& in, const Values& table) {
  const std::vector<std::int32_t> positions = positions_of(c);
  const auto rotated = [&](std::int64_t t, const Values& x, std::int64_t first, Values& out) {
    const std::int64_t row = positions[place(t)] * c.rotated;
    for (std::int64_t i = 0; i < c.rotated / 2; ++i) {
      const double cosine = table[place(row + i)], sine = table[place(row + c.rotated / 2 + i)],
                   a = x[place(first + 2 * i)], b = x[place(first + 2 * i + 1)];
      out.push_back(a * cosine - b * sine);
      out.push_back(a * sine + b * cosine);
    }
  };
  const auto copied = [](const Values& x, std::int64_t first, std::int64_t count, Values& out) {
    out.insert(out.end(), x.begin() + first, x.begin() + first + count);
  };
  Values out;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int64_t of_kv = t * c.kv_columns(), each = c.own() + c.value_size;
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::int64_t first = (t * c.heads + h) * c.head_size;
      copied(in.q, first, c.own(), out);
      rotated(t, in.q, first + c.own(), out);
    }
    for (std::int64_t h = 0; h < c.heads; ++h) {
      copied(in.kv, of_kv + h * each, c.own(), out);
      rotated(t, in.k_rope, t * c.rotated, out);
    }
    for (std::int64_t h = 0; h < c.heads; ++h) copied(in.kv, of_kv + h * each + c.own(), c.value_size, out);
  }
  return out;
}

}  // namespace

TEST_CASE("heads of latent attention have their own elements, shared ones and values", "[latent]") {
  for (const DType dtype : kActivationDtypes)
    for (const LatentCase& c : kCases) {
      CAPTURE(c.head_size);
      const LatentInputs in{normal_values(c.tokens * c.heads * c.head_size, 1, dtype),
                            normal_values(c.tokens * c.kv_columns(), 2, dtype),
                            normal_values(c.tokens * c.rotated, 3, dtype)};
      const Values table = table_of(c), expected = reference(c, in, table);
      check_operator([&](Machine& m) {
        const Tensor qkv = m.empty(dtype, {c.tokens, c.geometry().columns()});
        m.backend().latent_heads_forward(
            m.stream(), {.heads = c.geometry(),
                         .q_TC = m.tensor(dtype, {c.tokens, c.heads * c.head_size}, in.q),
                         .kv_TC = m.tensor(dtype, {c.tokens, c.kv_columns()}, in.kv),
                         .k_rope_TR = m.tensor(dtype, {c.tokens, c.rotated}, in.k_rope),
                         .positions_T = m.ids(positions_of(c)),
                         .rope_table_SR = m.tensor(DType::f32, {kPositions, c.rotated}, table),
                         .qkv = qkv});
        return std::vector<Output>{{"qkv", qkv, expected, 2}};
      });
    }
}

TEST_CASE("the backward of latent heads is the transpose of the forward", "[latent]") {
  for (const DType dtype : kActivationDtypes)
    for (const LatentCase& c : kCases) {
      CAPTURE(c.head_size);
      const Values table = table_of(c), dqkv = normal_values(c.tokens * c.geometry().columns(), 4, dtype);
      // The forward is linear, so that its differences are exact.
      const auto gradient = [&](Values LatentInputs::*which, std::int64_t count) {
        LatentInputs in{Values(place(c.tokens * c.heads * c.head_size), 0.0),
                        Values(place(c.tokens * c.kv_columns()), 0.0),
                        Values(place(c.tokens * c.rotated), 0.0)};
        if (c.tokens * count <= 4096)
          return numeric_gradient(
              [&](const Values& x) {
                in.*which = x;
                return dot(reference(c, in, table), dqkv);
              },
              in.*which);
        return Values{};
      };
      const Values dq = gradient(&LatentInputs::q, c.heads * c.head_size),
                   dkv = gradient(&LatentInputs::kv, c.kv_columns()),
                   dk_rope = gradient(&LatentInputs::k_rope, c.rotated);
      check_operator([&](Machine& m) {
        const kernels::LatentHeadsBackward a{
            .heads = c.geometry(),
            .dqkv = m.tensor(dtype, {c.tokens, c.geometry().columns()}, dqkv),
            .positions_T = m.ids(positions_of(c)),
            .rope_table_SR = m.tensor(DType::f32, {kPositions, c.rotated}, table),
            .dq_TC = m.empty(dtype, {c.tokens, c.heads * c.head_size}),
            .dkv_TC = m.empty(dtype, {c.tokens, c.kv_columns()}),
            .dk_rope_TR = m.empty(dtype, {c.tokens, c.rotated})};
        m.backend().latent_heads_backward(m.stream(), a);
        std::vector<Output> outputs{{"dk_rope", a.dk_rope_TR, dk_rope, c.heads + 2}};
        if (!dq.empty()) outputs.push_back({"dq", a.dq_TC, dq, 2});
        if (!dkv.empty()) outputs.push_back({"dkv", a.dkv_TC, dkv, 2});
        return outputs;
      });
    }
}

}  // namespace trainerd::test
