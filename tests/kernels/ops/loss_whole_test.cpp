// One operator for statistics, losses and gradients of a whole vocabulary gives the results of the two
// operators that it replaces.

#include "tests/kernels/machine.h"

namespace trainerd::test {
namespace {

struct Row {
  std::int64_t tokens, columns, vocab;
};
/// One vector per thread, tails, rows that are not whole 16-byte chunks, and vocabularies that fill a block's
/// capacity for a row: in shared memory, and in registers beside it.
constexpr Row kRows[] = {{3, 64, 60}, {4, 40, 33}, {2, 9001, 9000}, {2, 58000, 57301}, {1, 152064, 151936}};

struct Objective {
  float softcap, smoothing, z_loss;
};
constexpr Objective kObjectives[] = {{0, 0, 0}, {30, 0.1f, 0}, {0, 0.1f, 1e-3f}};

}  // namespace

TEST_CASE("the loss of whole rows at once has the bits of statistics and finish as separate operators",
          "[loss]") {
  for (const DType dtype : kActivationDtypes)
    for (const Row& r : kRows)
      for (const Objective& o : kObjectives) {
        CAPTURE(r.columns, o.softcap, o.smoothing);
        const Shape shape{r.tokens, r.columns}, each{r.tokens};
        const Values logits = normal_values(shape.numel(), 1, dtype, 4.0);
        std::vector<std::int32_t> targets;
        Values weight;
        for (std::int64_t t = 0; t < r.tokens; ++t) {
          targets.push_back(static_cast<std::int32_t>((t * 7919 + r.vocab - 1) % r.vocab));
          weight.push_back(t == 1 ? 0.0 : 0.5 + static_cast<double>(t));
        }
        check_operator([&](Machine& m) {
          const auto numbers = [&] { return m.empty(DType::f32, each); };
          const Tensor z_losses = o.z_loss > 0 ? numbers() : Tensor{},
                       scale = dtype == DType::f32 ? Tensor{} : m.tensor(DType::f32, {1}, {4.0});
          const kernels::CeLoss whole{.logits_TV = m.tensor(dtype, shape, logits),
                                      .targets_T = m.ids(targets),
                                      .loss_weight_T = m.tensor(DType::f32, each, weight),
                                      .vocab = r.vocab,
                                      .softcap = o.softcap,
                                      .grad_scale = 0.25f,
                                      .loss_scale = scale,
                                      .label_smoothing = o.smoothing,
                                      .z_loss = o.z_loss,
                                      .max_T = numbers(),
                                      .sum_exp_T = numbers(),
                                      .target_logit_T = numbers(),
                                      .loss_T = numbers(),
                                      .z_loss_T = z_losses};
          kernels::CeLoss parts = whole;
          parts.logits_TV = m.tensor(dtype, shape, logits);
          parts.max_T = numbers(), parts.sum_exp_T = numbers(), parts.target_logit_T = numbers();
          parts.loss_T = numbers();
          if (o.z_loss > 0) parts.z_loss_T = numbers();
          m.backend().ce_loss(m.stream(), whole);
          m.backend().ce_stats(m.stream(), stats_of(parts));
          m.backend().ce_finish(m.stream(), finish_of(parts));
          const auto same = [](const Tensor& a, const Tensor& b) { return read_bytes(a) == read_bytes(b); };
          CHECK(same(whole.max_T, parts.max_T));
          CHECK(same(whole.sum_exp_T, parts.sum_exp_T));
          CHECK(same(whole.target_logit_T, parts.target_logit_T));
          CHECK(same(whole.loss_T, parts.loss_T));
          if (o.z_loss > 0) CHECK(same(whole.z_loss_T, parts.z_loss_T));
          CHECK(same(whole.logits_TV, parts.logits_TV));
          if (scale.defined()) {
            kernels::CeLoss unscaled = whole;
            unscaled.logits_TV = m.tensor(dtype, shape, logits);
            unscaled.loss_T = numbers();
            unscaled.loss_scale = {}, unscaled.grad_scale = 1;
            m.backend().ce_loss(m.stream(), unscaled);
            CHECK(same(whole.logits_TV, unscaled.logits_TV));
            CHECK(same(whole.loss_T, unscaled.loss_T));
          }
          return std::vector<Output>{{"loss", whole.loss_T, Machine::read(parts.loss_T), r.columns}};
        });
      }
}

}  // namespace trainerd::test
