// Rows of the vocabulary padded to a multiple for a device's GEMMs. Padding changes memory only.

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/model/parameters.h"
#include "core/plan/predict/plan.h"
#include "core/train/snapshot.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

core::job::JobSpec odd_job(const std::string& more = "") {
  return core::spec::parse_job(
      "name: odd\nseed: 5\ndevice: cpu\n"
      "model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 97, seq_len: 16" +
          more +
          "}\n"
          "batch: {global: 4, micro: 1}\nprecision: fp32\n"
          "optimizer: {name: adamw, lr: 5.0e-3, weight_decay: 0.1, grad_clip: 0.7, schedule: {kind: "
          "constant}}\n"
          "loss: {z_loss: 1.0e-3, label_smoothing: 0.1}\n"
          "steps: 20\ndata: {format: synthetic}\n",
      "odd.yaml");
}

core::job::JobSpec odd_layout(core::job::JobSpec job, std::int64_t tp, std::int64_t pp, std::int64_t dp,
                              std::int64_t zero) {
  job.parallel.tp = tp, job.parallel.pp = pp, job.parallel.dp = dp, job.parallel.zero = zero;
  return job;
}

/// This machine's CPU with the given `vocab_multiple`.
parallel::Topology padding_topology(std::int64_t multiple) {
  parallel::Topology topology = test::cpu_topology(1);
  topology.devices_per_node = 64, topology.nodes = 64;
  topology.device.vocab_multiple = multiple;
  return topology;
}

struct SavedShard {
  std::vector<std::byte> bytes;
  std::vector<io::TensorSlice> slices;
};

/// Results of a run: its curve, and the state that each rank saves before the first step and after the last.
struct PaddedRun {
  std::vector<double> curve;  ///< losses and norms
  std::vector<SavedShard> first, last;
};

SavedShard saved_by(core::rank::DeviceRank& rank) {
  const core::train::Snapshot snapshot(rank.trainer().params());
  SavedShard shard{std::vector<std::byte>(static_cast<std::size_t>(snapshot.bytes())), snapshot.slices()};
  snapshot.fill(rank.backend(), rank.trainer().stream(), shard.bytes);
  return shard;
}

/// Runs steps `from` to `to`, resumed from `saved` if given.
PaddedRun train_padded(const core::job::JobSpec& job, std::int64_t multiple, std::int64_t from,
                       std::int64_t to, const std::vector<SavedShard>* saved = nullptr) {
  const std::size_t ranks = test::ranks_of(job);
  PaddedRun out;
  out.first.resize(ranks), out.last.resize(ranks);
  std::vector<std::vector<double>> curves(ranks);
  test::on_ranks_of(padding_topology(multiple), job, [&](std::int64_t rank, core::rank::DeviceRank& cpu) {
    const auto at = static_cast<std::size_t>(rank);
    if (saved != nullptr) {
      std::vector<io::ShardContent> contents;
      for (const SavedShard& shard : *saved) contents.push_back({shard.bytes, shard.slices});
      io::CheckpointReader reader("saved", contents);
      core::train::Snapshot(cpu.trainer().params()).load(cpu.backend(), cpu.trainer().stream(), reader);
      cpu.trainer().params().publish(cpu.trainer().stream());
    }
    out.first[at] = saved_by(cpu);
    for (std::int64_t step = from; step <= to; ++step) {
      const core::train::StepReport report = test::step_on(cpu.trainer(), job, step);
      curves[at].insert(curves[at].end(), {report.loss, report.z_loss.value_or(-1), report.grad_norm});
    }
    test::require_as_planned(cpu);
    out.last[at] = saved_by(cpu);
  });
  out.curve = curves[0];
  return out;
}

void require_close_curves(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(2e-5));
}

/// Boxes of the model in a rank's file, by name.
std::map<std::string, std::vector<std::int64_t>> boxes_of_file(const SavedShard& shard) {
  std::map<std::string, std::vector<std::int64_t>> result;
  for (const io::TensorSlice& slice : shard.slices) {
    std::vector<std::int64_t>& box = result[slice.stored_name()];
    box = slice.begin;
    box.insert(box.end(), slice.shape.begin(), slice.shape.end());
    box.insert(box.end(), slice.logical_shape.begin(), slice.logical_shape.end());
  }
  return result;
}

}  // namespace

TEST_CASE("a rank's rows of the vocabulary are a multiple of the device's, and a CPU's are as many as before",
          "[vocab_padding]") {
  core::job::ModelOptions model = odd_job().model;
  model.vocab = 50257;
  CHECK(core::model::local_sizes(model, 1, 0, 1).vocab_rows == 50257);
  CHECK(core::model::local_sizes(model, 2, 1, 1).vocab_rows == 25129);
  CHECK(core::model::local_sizes(model, 1, 0, 128).vocab_rows == 50304);
  const core::model::LocalSizes last = core::model::local_sizes(model, 4, 3, 128);
  CHECK(last.vocab_rows == 12672);  // ceil(50257 / 4) = 12565, rounded up to 99 x 128
  CHECK(last.first_vocab_row == 3 * 12672);
  model.vocab = 32000;
  CHECK(core::model::local_sizes(model, 1, 0, 128).vocab_rows == 32000);
}

TEST_CASE("padded rows of the vocabulary change no loss, no norm and nothing that is saved",
          "[vocab_padding]") {
  for (const std::string model : {"", ", tie_embeddings: true, logit_softcap: 20"}) {
    const core::job::JobSpec job = odd_job(model);
    const PaddedRun plain = train_padded(job, 1, 1, 5);
    struct Case {
      std::int64_t tp, pp, dp, zero;
    };
    // From tp 2 on, the other ranks hold padding alone: all 97 rows are in the first rank's 128.
    for (const Case& c : std::vector<Case>{{1, 1, 1, 0}, {2, 1, 1, 1}, {2, 1, 2, 3}, {1, 2, 1, 1}}) {
      CAPTURE(model, c.tp, c.pp, c.dp, c.zero);
      const core::job::JobSpec laid = odd_layout(job, c.tp, c.pp, c.dp, c.zero);
      const PaddedRun padded = train_padded(laid, 128, 1, 5);
      require_close_curves(padded.curve, plain.curve);
      if (test::ranks_of(laid) > 1) continue;
      CHECK(boxes_of_file(padded.first[0]) == boxes_of_file(plain.first[0]));
      CHECK(padded.first[0].bytes == plain.first[0].bytes);
      CHECK(padded.last[0].bytes.size() == plain.last[0].bytes.size());
    }
  }
}

TEST_CASE("a run goes from a device that pads the vocabulary to one that does not, and back",
          "[vocab_padding]") {
  const core::job::JobSpec job = odd_job();
  const std::vector<double> expected = train_padded(job, 1, 1, 6).curve;
  const auto tail = [](const std::vector<double>& curve) {
    return std::vector<double>(curve.end() - 9, curve.end());
  };
  const core::job::JobSpec two = odd_layout(job, 2, 1, 1, 1);
  const PaddedRun padded = train_padded(two, 128, 1, 3);
  require_close_curves(train_padded(job, 1, 4, 6, &padded.last).curve, tail(expected));
  const PaddedRun plain = train_padded(job, 1, 1, 3);
  require_close_curves(train_padded(two, 128, 4, 6, &plain.last).curve, tail(expected));
}

TEST_CASE("a plan for GPUs counts the vocabulary's padding, and the checkpoint does not", "[vocab_padding]") {
  const auto plan = [](int vocab) {
    const core::job::JobSpec job = core::spec::parse_job(
        "model: {layers: 2, hidden: 256, heads: 4, ffn: 512, vocab: " + std::to_string(vocab) +
            ", seq_len: 128}\nsteps: 1\nprecision: bf16\ndata: {format: synthetic}\n"
            "cluster: {preset: dgx-h100}\nbatch: {global: 8, micro: 1}\nparallel: {dp: 8}\n",
        "job.yaml");
    return core::plan::make_plan(job, core::spec::job_topology(job));
  };
  const core::plan::Plan odd = plan(50257), whole = plan(50304);
  CHECK(odd.peak_bytes == whole.peak_bytes);
  CHECK(odd.checkpoint.bytes < whole.checkpoint.bytes);
}
