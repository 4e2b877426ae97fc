#include <limits>

#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

using kernels::WriteMode;

/// Ids in [first - 2, first + rows + 2): some are outside of the held rows. Every third is the same row.
std::vector<std::int32_t> ids_around(std::int64_t first, std::int64_t rows, std::int64_t count) {
  std::mt19937 generator(7);
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < count; ++t) {
    const auto draw = static_cast<std::int64_t>(generator() % static_cast<unsigned>(rows + 4));
    ids.push_back(static_cast<std::int32_t>(t % 3 == 0 ? first + rows / 2 : first - 2 + draw));
  }
  return ids;
}

struct EmbeddingCase {
  std::int64_t tokens, rows, columns, first_row;
};
constexpr EmbeddingCase kEmbeddingCases[] = {
    {1, 1, 1, 0}, {9, 5, 37, 0}, {300, 3, 130, 100}, {40, 1100, 16, 7}};

}  // namespace

TEST_CASE("embedding forward takes rows of the held table and adds positions", "[embedding]") {
  for (const DType dtype : kActivationDtypes)
    for (const EmbeddingCase& c : kEmbeddingCases) {
      const std::vector<std::int32_t> tokens = ids_around(c.first_row, c.rows, c.tokens);
      const Values table = normal_values(c.rows * c.columns, 1, dtype);
      const Values places = normal_values(4 * c.columns, 2, dtype);
      std::vector<std::int32_t> positions;
      Values plain, placed;
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        positions.push_back(static_cast<std::int32_t>(t % 4));
        const std::int64_t row = tokens[static_cast<std::size_t>(t)] - c.first_row;
        for (std::int64_t i = 0; i < c.columns; ++i) {
          const double value =
              row >= 0 && row < c.rows ? table[static_cast<std::size_t>(row * c.columns + i)] : 0.0;
          plain.push_back(value);
          placed.push_back(value + places[static_cast<std::size_t>(t % 4 * c.columns + i)]);
        }
      }
      check_operator([&](Machine& m) {
        kernels::EmbeddingForward args{.tokens_T = m.ids(tokens),
                                       .table_VD = m.tensor(dtype, {c.rows, c.columns}, table),
                                       .first_row = c.first_row,
                                       .positions_T = {},
                                       .positions_table_SD = {},
                                       .out_TD = m.empty(dtype, {c.tokens, c.columns})};
        m.backend().embedding_forward(m.stream(), args);
        std::vector<Output> outputs{{"rows", args.out_TD, plain}};
        args.positions_T = m.ids(positions);
        args.positions_table_SD = m.tensor(dtype, {4, c.columns}, places);
        args.out_TD = m.empty(dtype, {c.tokens, c.columns});
        m.backend().embedding_forward(m.stream(), args);
        outputs.push_back({"rows and positions", args.out_TD, placed});
        return outputs;
      });
    }
}

TEST_CASE("only ids outside the vocabulary are flagged, at any position", "[embedding]") {
  constexpr std::int64_t kTokens = 300;
  constexpr std::int32_t kVocab = 97;
  struct Ids {
    std::int64_t place;
    std::int32_t token, target;
    bool outside;
  };
  for (const Ids& c : {Ids{0, 0, kVocab - 1, false}, Ids{0, kVocab, 1, true}, Ids{299, 5, kVocab, true},
                       Ids{150, -1, 3, true}, Ids{257, 3, std::numeric_limits<std::int32_t>::max(), true},
                       Ids{31, 1, std::numeric_limits<std::int32_t>::min(), true}}) {
    CAPTURE(c.place, c.token, c.target);
    std::vector<std::int32_t> tokens(kTokens, kVocab - 1), targets(kTokens, 0);
    tokens[static_cast<std::size_t>(c.place)] = c.token;
    targets[static_cast<std::size_t>(c.place)] = c.target;
    check_operator([&](Machine& m) {
      const Tensor first = m.tensor(DType::f32, {1}, {0.0}), before = m.tensor(DType::f32, {1}, {3.0});
      for (const Tensor& flag : {first, before})
        m.backend().check_ids(m.stream(), {.tokens_T = m.ids(tokens),
                                           .targets_T = m.ids(targets),
                                           .vocab = kVocab,
                                           .flag = flag,
                                           .flag_value = 7});
      return std::vector<Output>{{"flag", first, {c.outside ? 7.0 : 0.0}},
                                 {"flag of a batch before", before, {c.outside ? 7.0 : 3.0}}};
    });
  }
}

TEST_CASE("embedding backward sums the gradients of equal tokens", "[embedding]") {
  for (const DType dtype : kActivationDtypes)
    for (const DType grad_dtype : kStateDtypes)
      for (const EmbeddingCase& c : kEmbeddingCases) {
        if (mixed(dtype, grad_dtype)) continue;
        const std::vector<std::int32_t> tokens = ids_around(c.first_row, c.rows, c.tokens);
        const Values dout = normal_values(c.tokens * c.columns, 3, dtype);
        const Values before = normal_values(c.rows * c.columns, 4, grad_dtype);
        Values gradient(before.size(), 0.0);
        for (std::int64_t t = 0; t < c.tokens; ++t) {
          const std::int64_t row = tokens[static_cast<std::size_t>(t)] - c.first_row;
          for (std::int64_t i = 0; i < c.columns && row >= 0 && row < c.rows; ++i)
            gradient[static_cast<std::size_t>(row * c.columns + i)] +=
                dout[static_cast<std::size_t>(t * c.columns + i)];
        }
        check_operator([&](Machine& m) {
          kernels::EmbeddingBackward args{.rows_T = m.ids(tokens),
                                          .first_row = c.first_row,
                                          .dout_TD = m.tensor(dtype, {c.tokens, c.columns}, dout),
                                          .dtable_VD = m.tensor(grad_dtype, {c.rows, c.columns}, before),
                                          .mode = WriteMode::accumulate};
          m.backend().embedding_backward(m.stream(), args);
          CHECK(m.scratch().high_water() == kernels::align_up(scratch_bytes(args, m.backend().target())));
          std::vector<Output> outputs{{"added to", args.dtable_VD, sum(before, gradient), c.tokens}};
          args.dtable_VD = m.empty(grad_dtype, {c.rows, c.columns});
          args.mode = WriteMode::assign;
          m.backend().embedding_backward(m.stream(), args);
          outputs.push_back({"assigned", args.dtable_VD, gradient, c.tokens});
          return outputs;
        });
      }
}

TEST_CASE("embedding backward adds in rising order of tokens", "[embedding]") {
  // 1, then -1, then 2^-30: any order that adds the small one earlier loses it.
  check_operator([](Machine& m) {
    const kernels::EmbeddingBackward args{.rows_T = m.ids({1, 1, 0, 1}),
                                          .first_row = 0,
                                          .dout_TD = m.tensor(DType::f32, {4, 1}, {1.0, -1.0, 5.0, 0x1p-30}),
                                          .dtable_VD = m.empty(DType::f32, {2, 1}),
                                          .mode = WriteMode::assign};
    m.backend().embedding_backward(m.stream(), args);
    CHECK(Machine::read(args.dtable_VD) == Values{5.0, 0x1p-30});
    return std::vector<Output>{};
  });
}

}  // namespace trainerd::test
