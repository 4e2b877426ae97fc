// Attention inside documents: a microbatch's document bounds, the leak probe, and packed documents against
// the same documents as separate samples.

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/core/train_support.h"
#include "tests/full.h"

using namespace trainerd;

namespace {

constexpr std::int64_t kDocumentSeq = 16;
/// First tokens of documents in every sample: documents of 5, 1, 7 and 3 tokens; the last target starts
/// another.
const std::vector<std::int32_t> kDocumentStarts{5, 6, 13, 16};
constexpr std::int64_t kPerturbedSample = 2, kPerturbedToken = 8, kPerturbedBegin = 6, kPerturbedEnd = 13;

core::job::JobSpec documents_job(const std::string& model = "llama", const std::string& precision = "fp32") {
  core::job::JobSpec job = core::spec::parse_job(
      "name: documents\nseed: 5\ndevice: cpu\n"
      "model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 16}\n"
      "batch: {global: 4, micro: 1}\nprecision: " +
          precision +
          "\n"
          "optimizer: {name: adamw, lr: 5.0e-3, schedule: {kind: constant}}\n"
          "steps: 20\ndata: {format: synthetic}\n",
      "documents.yaml");
  job.data.document_mask = job.data.reset_positions = true;
  job.data.max_documents = 6;
  if (model == "gpt2") {
    job.model.norm = core::job::Norm::layer;
    job.model.positions = core::job::Positions::learned;
    job.model.mlp = core::job::Mlp::gelu;
    job.model.linear_bias = job.model.qkv_bias = job.model.tie_embeddings = true;
    job.model.kv_heads = 4;
  }
  return job;
}

/// Records the logits between the head's GEMM and the loss.
class LogitsProbe final : public kernels::ObservedBackend {
 public:
  explicit LogitsProbe(kernels::Backend& inner)
      : kernels::ObservedBackend(inner, [](const kernels::ObservedCall&) {}) {}
  void ce_stats(kernels::Stream& s, const kernels::CeStats& a) override {
    for (std::int64_t t = 0; t < a.logits_TV.size(0); ++t) {
      const std::byte* row = a.logits_TV.data + t * a.logits_TV.size(1) * size_of(a.logits_TV.dtype);
      rows.emplace_back(row, row + a.logits_TV.size(1) * size_of(a.logits_TV.dtype));
    }
    kernels::ObservedBackend::ce_stats(s, a);
  }
  std::vector<std::vector<std::byte>> rows;  ///< logits of all microbatches in order
};

struct Probed {
  std::vector<std::vector<std::byte>> rows;  ///< logits of an evaluation and a step
  double other_loss = 0;                     ///< loss of an evaluation without the perturbed document
};

/// Logits and losses by rank.
std::vector<Probed> probe(const core::job::JobSpec& job, bool perturbed) {
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = topology.nodes = 64;
  const parallel::Layout layout = core::rank::layout_of(job, topology);
  parallel::LocalWorld world(layout.grid.ranks());
  std::vector<Probed> found(test::ranks_of(job));
  std::vector<std::int32_t> samples = test::skewed_samples(job, 1);
  std::int32_t& token =
      samples[static_cast<std::size_t>(kPerturbedSample * (kDocumentSeq + 1) + kPerturbedToken)];
  if (perturbed) token = (token + 41) % static_cast<std::int32_t>(job.model.vocab);
  world.run([&](std::int64_t rank) {
    // Builds a rank as core::rank::DeviceRank does, on the probe's backend.
    test::FunctionWorld others(
        [&](kernels::Backend& backend, const std::string& name, const std::vector<std::int64_t>& members) {
          return world.communicator(rank, backend, members, name);
        });
    const std::int64_t stage = layout.grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)];
    const core::rank::DryRun plan = core::rank::dry_run(job, layout, rank, topology.device);
    base::ThreadPool pool(1);
    kernels::CpuBackend cpu(topology.device, pool);
    LogitsProbe backend(cpu);
    core::train::StepMemory memory(backend, core::train::count_slots(job, layout, stage), plan.memory);
    const core::train::RankGroups groups(layout, rank, job.model, others, backend);
    core::train::Trainer trainer(job, layout, backend, groups, memory);
    trainer.initialise();
    const auto batches = [&](bool others_count) {
      return core::train::SampleBatches(trainer.batch_shape(),
                                        [&, others_count](std::int64_t sample, core::train::HostSample& to) {
                                          std::copy_n(samples.begin() + sample * (kDocumentSeq + 1),
                                                      kDocumentSeq + 1, to.tokens_S1.begin());
                                          to.starts = kDocumentStarts;
                                          if (others_count && sample == kPerturbedSample)
                                            std::fill(to.loss_weight_S.begin() + kPerturbedBegin,
                                                      to.loss_weight_S.begin() + kPerturbedEnd, 0.0f);
                                        });
    };
    Probed& mine = found[static_cast<std::size_t>(rank)];
    auto of_others = batches(true);
    mine.other_loss = trainer.evaluate(of_others).loss;
    auto all = batches(false);
    trainer.step(1, all, {});
    mine.rows = std::move(backend.rows);
  });
  return found;
}

struct DocumentCase {
  std::int64_t tp = 1, pp = 1, dp = 1, zero = 1, micro = 1;
  parallel::ScheduleKind schedule = parallel::ScheduleKind::one_f_one_b;
  std::int64_t virtual_stages = 1;
  bool sequence_parallel = false;
  core::job::RecomputeOptions recompute = {};
  std::int64_t cp = 1;
  parallel::ContextComm cp_comm = parallel::ContextComm::automatic;
};

core::job::JobSpec in_layout(core::job::JobSpec job, const DocumentCase& c) {
  job.parallel.tp = c.tp, job.parallel.cp = c.cp, job.parallel.cp_comm = c.cp_comm, job.parallel.pp = c.pp,
  job.parallel.dp = c.dp, job.parallel.zero = c.zero;
  job.parallel.schedule = c.schedule, job.parallel.virtual_stages = c.virtual_stages;
  job.parallel.sequence_parallel = c.sequence_parallel;
  job.batch.micro = c.micro;
  job.recompute = c.recompute;
  return job;
}

std::vector<DocumentCase> document_cases() {
  using core::job::RecomputeKind;
  using parallel::ScheduleKind;
  std::vector<DocumentCase> cases{
      {},
      {1, 1, 1, 1, 4},
      {2, 1, 2, 3, 2, ScheduleKind::one_f_one_b, 1, true},
      {2, 2, 1, 1, 1, ScheduleKind::zb_h1, 1, false, {RecomputeKind::selective, 1}},
      {1, 2, 2, 2, 1, ScheduleKind::interleaved, 2, false, {RecomputeKind::full, 1}}};
  if (test::runs_full()) {
    cases.push_back({4, 1, 1, 1, 4, ScheduleKind::one_f_one_b, 1, true});
    cases.push_back({1, 4, 1, 1, 1, ScheduleKind::gpipe, 1, false, {RecomputeKind::full, 2}});
    cases.push_back({1, 1, 4, 0, 1});
    cases.push_back({2, 2, 2, 3, 1, ScheduleKind::one_f_one_b, 1, true});
  }
  return cases;
}

/// Losses and norms of `steps` steps. Tokens are those of documents_job(); sample i starts at i x
/// `sample_tokens`.
std::vector<double> documents_curve(const core::job::JobSpec& job, std::int64_t sample_tokens,
                                    const std::vector<std::int32_t>& starts, std::int64_t steps = 5) {
  std::vector<std::vector<double>> curves(test::ranks_of(job));
  core::job::JobSpec text = documents_job();
  test::on_every_rank(job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    for (std::int64_t step = 1; step <= steps; ++step) {
      const std::vector<std::int32_t> samples = test::skewed_samples(text, step);
      core::train::SampleBatches batches(
          cpu.trainer().batch_shape(), [&](std::int64_t sample, core::train::HostSample& to) {
            std::copy_n(samples.begin() + sample * sample_tokens,
                        static_cast<std::ptrdiff_t>(to.tokens_S1.size()), to.tokens_S1.begin());
            to.starts = starts;
          });
      const core::train::StepReport report = cpu.trainer().step(step, batches, {});
      curves[static_cast<std::size_t>(rank)].push_back(report.loss);
      curves[static_cast<std::size_t>(rank)].push_back(report.grad_norm);
    }
    test::require_as_planned(cpu);
  });
  for (const auto& curve : curves) CHECK(curve == curves[0]);
  return curves[0];
}

void check_same_curve(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).epsilon(2e-5));
}

}  // namespace

TEST_CASE("a microbatch has a sequence for each document, and room for more", "[documents]") {
  core::train::BatchShape shape{
      .seq_len = 6, .micro = 2, .global = 3, .documents = 3, .reset_positions = true};
  const auto read = [](std::int64_t sample, core::train::HostSample& to) {
    for (std::size_t i = 0; i < to.tokens_S1.size(); ++i) to.tokens_S1[i] = static_cast<std::int32_t>(i);
    if (sample == 0) to.starts = {2, 3, 6};
  };
  core::train::SampleBatches batches(shape, read);
  const core::train::HostBatch first = batches.next({0, true});
  CHECK(first.cu_seqlens == std::vector<std::int32_t>{0, 2, 3, 6, 12, 12, 12});
  CHECK(first.positions_T == std::vector<std::int32_t>{0, 1, 0, 0, 1, 2, 0, 1, 2, 3, 4, 5});
  // Tokens 2, 3 and 6 are predicted from another document.
  CHECK(first.loss_weight_T == std::vector<float>{1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1});
  CHECK(first.loss_weight == 9);
  // A chunk without tokens has the same documents; padding is one document.
  CHECK(batches.next({0, false}).cu_seqlens == std::vector<std::int32_t>{0, 2, 3, 6, 12, 12, 12});
  CHECK(batches.next({1, true}).cu_seqlens == std::vector<std::int32_t>{0, 6, 12, 12, 12, 12, 12});
  shape.reset_positions = false;
  core::train::SampleBatches counting(shape, read);
  CHECK(counting.next({0, false}).positions_T ==
        std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  // Only positions restart: attention covers the whole sample, and all tokens count.
  shape.documents = 0, shape.reset_positions = true;
  core::train::SampleBatches positions(shape, read);
  CHECK(positions.next({0, true}).cu_seqlens == std::vector<std::int32_t>{0, 6, 12});
  CHECK(positions.next({0, true}).positions_T == first.positions_T);
  CHECK(positions.next({0, true}).loss_weight == 12);
  shape.documents = 1;
  core::train::SampleBatches few(shape, read);
  CHECK_THROWS_AS(few.next({0, true}), std::logic_error);
}

TEST_CASE("context parallel ranks have two chunks of each sample, and the parts of documents in them",
          "[documents][context]") {
  // Samples of 12 tokens: documents of 2, 1 and 9, and of 12. Chunks of 3 tokens: rank 0 has 0 and 3.
  core::train::BatchShape shape{.seq_len = 12, .micro = 2, .cp = 2, .global = 2, .documents = 3};
  const auto read = [](std::int64_t sample, core::train::HostSample& to) {
    for (std::size_t i = 0; i < to.tokens_S1.size(); ++i)
      to.tokens_S1[i] = static_cast<std::int32_t>(100 * sample + static_cast<std::int64_t>(i));
    if (sample == 0) to.starts = {2, 3};
    to.loss_weight_S[11] = 0.5f;
  };
  using Ints = std::vector<std::int32_t>;
  const core::train::HostBatch first = core::train::SampleBatches(shape, read).next({0, true});
  CHECK(first.tokens_T == Ints{0, 1, 2, 100, 101, 102, 9, 10, 11, 109, 110, 111});
  CHECK(first.targets_T == Ints{1, 2, 3, 101, 102, 103, 10, 11, 12, 110, 111, 112});
  CHECK(first.positions_T == Ints{0, 1, 2, 0, 1, 2, 9, 10, 11, 9, 10, 11});
  // Tokens 2 and 3 are predicted from another document.
  CHECK(first.loss_weight_T == std::vector<float>{1, 0, 0, 1, 1, 1, 1, 1, 0.5f, 1, 1, 0.5f});
  CHECK(first.loss_weight == 9);
  CHECK(first.cu_seqlens == Ints{0, 2, 3, 12, 24, 24, 24});  // of the whole samples
  CHECK(first.piece_seqlens[0] == Ints{0, 2, 3, 3, 6, 6, 6});
  CHECK(first.piece_seqlens[1] == Ints{0, 0, 0, 3, 6, 6, 6});
  CHECK(first.piece_first[1] == Ints{0, -2, -3, 0, 0, 0});  // token 9 is at position 9 - 3 of its document
  shape.cp_rank = 1;
  const core::train::HostBatch second = core::train::SampleBatches(shape, read).next({0, true});
  CHECK(second.tokens_T == Ints{3, 4, 5, 103, 104, 105, 6, 7, 8, 106, 107, 108});
  CHECK(second.piece_seqlens[0] == Ints{0, 0, 0, 3, 6, 6, 6});
  CHECK(second.piece_first[0] == Ints{0, -2, -3, 0, 0, 0});
  CHECK(second.loss_weight == 12);
  shape.documents = 0;
  const core::train::HostBatch plain = core::train::SampleBatches(shape, read).next({0, true});
  CHECK(plain.piece_seqlens[0] == Ints{0, 3, 6});
  CHECK(plain.piece_first[0].empty());
}

TEST_CASE("a token of one document changes no logit or loss of another, bit for bit",
          "[documents][layouts]") {
  for (const std::string precision : {"fp32", "bf16"})
    for (const DocumentCase& c : document_cases()) {
      CAPTURE(precision, c.tp, c.pp, c.dp, c.zero, c.micro, parallel::to_string(c.schedule));
      const core::job::JobSpec job = in_layout(documents_job("llama", precision), c);
      const auto before = probe(job, false), after = probe(job, true);
      std::int64_t moved = 0;
      for (std::size_t rank = 0; rank < before.size(); ++rank) {
        CHECK(before[rank].other_loss == after[rank].other_loss);
        REQUIRE(before[rank].rows.size() == after[rank].rows.size());
        for (std::size_t t = 0; t < before[rank].rows.size(); ++t) {
          if (before[rank].rows[t] == after[rank].rows[t]) continue;
          ++moved;
          const auto position = static_cast<std::int64_t>(t) % kDocumentSeq;
          CAPTURE(rank, t, position);
          CHECK(position >= kPerturbedToken);
          CHECK(position < kPerturbedEnd);
        }
      }
      // Both passes saw the change, in one sample, on each tensor-parallel rank.
      CHECK(moved > 0);
      CHECK(moved <= 2 * c.tp * (kPerturbedEnd - kPerturbedToken));
    }
}

TEST_CASE("without the mask the same token changes logits after its document", "[documents]") {
  core::job::JobSpec job = documents_job();
  job.data.document_mask = job.data.reset_positions = false;
  const auto before = probe(job, false), after = probe(job, true);
  std::set<std::int64_t> moved;
  for (std::size_t t = 0; t < before[0].rows.size(); ++t)
    if (before[0].rows[t] != after[0].rows[t]) moved.insert(static_cast<std::int64_t>(t) % kDocumentSeq);
  CHECK(*moved.rbegin() == kDocumentSeq - 1);
  CHECK(before[0].other_loss != after[0].other_loss);
}

TEST_CASE("packed documents train like separate samples", "[documents]") {
  for (const std::string model : {"llama", "gpt2"}) {
    CAPTURE(model);
    // Two documents of 8 tokens and the start of a third. As separate samples of 8 tokens they have 7
    // predictions.
    core::job::JobSpec packed = documents_job(model), apart = packed;
    packed.model.seq_len = 15;
    apart.data.document_mask = apart.data.reset_positions = false;
    apart.model.seq_len = 7;
    apart.batch.global = 2 * packed.batch.global;
    const std::vector<double> curve = documents_curve(packed, 16, {8});
    check_same_curve(curve, documents_curve(apart, 8, {}));
    // Learned positions match only if they restart at each document.
    packed.data.reset_positions = false;
    const std::vector<double> counted_on = documents_curve(packed, 16, {8});
    if (model == "llama") check_same_curve(counted_on, curve);
    else CHECK(counted_on.back() != Approx(curve.back()).epsilon(1e-3));
  }
}

TEST_CASE("a job of documents is the same on every layout", "[documents][layouts]") {
  const std::vector<double> expected = documents_curve(documents_job(), 17, kDocumentStarts);
  std::vector<DocumentCase> cases = document_cases();
  for (const auto comm : {parallel::ContextComm::all_gather, parallel::ContextComm::all_to_all}) {
    for (const std::int64_t micro : {1, 4}) cases.push_back({.micro = micro, .cp = 2, .cp_comm = comm});
    cases.push_back({.dp = 2, .zero = 3, .micro = 2, .cp = 4, .cp_comm = comm});
    cases.push_back({.tp = 2, .pp = 2, .sequence_parallel = true, .cp = 2, .cp_comm = comm});
  }
  for (const DocumentCase& c : cases) {
    CAPTURE(c.tp, c.cp, static_cast<int>(c.cp_comm), c.pp, c.dp, c.zero, c.micro);
    check_same_curve(documents_curve(in_layout(documents_job(), c), 17, kDocumentStarts), expected);
  }
}
