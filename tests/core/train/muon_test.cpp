// Muon orthogonalises whole matrices, with the same operations on any layout.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>

#include "core/rank/record.h"
#include "core/train/newton_schulz.h"
#include "core/train/optimizer.h"
#include "core/train/rank_schedule.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/tensor/rng.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

constexpr const char* kMuon =
    "optimizer: {name: muon, lr: 2.0e-2, adamw_lr: 5.0e-3, schedule: {kind: constant}}\n";

core::job::JobSpec muon_job(const std::string& precision, const std::string& parallel,
                            const std::string& model = "") {
  return core::spec::parse_job(
      "name: muon\nseed: 7\ndevice: cpu\n"
      "model: {layers: 3, hidden: 40, heads: 4, kv_heads: 2, head_dim: 12, ffn: 52, vocab: 97, seq_len: 16, "
      "qk_norm: true, qkv_bias: true, tie_embeddings: true" +
          model + "}\nbatch: {global: 12, micro: 1}\nprecision: " + precision + "\n" + kMuon +
          "steps: 20\ndata: {format: synthetic}\nparallel: {" + parallel + "}\n",
      "muon.yaml");
}

/// Every weight and state of the model by name and index in the logical tensor.
using Elements = std::map<std::string, std::map<std::int64_t, double>>;

double value_at(const kernels::Tensor& x, std::int64_t i) {
  return x.dtype == kernels::DType::bf16 ? static_cast<double>(kernels::to_float(x.as<kernels::Bf16>()[i]))
                                         : static_cast<double>(x.as<float>()[i]);
}

/// Three updates with gradients that are functions of (step, parameter, logical element) alone.
Elements updated(const core::job::JobSpec& job, std::int64_t devices_per_node = 64) {
  Elements elements;
  std::mutex mutex;
  test::on_every_rank(
      job,
      [&](std::int64_t, core::rank::DeviceRank& cpu) {
        core::train::Trainer& trainer = cpu.trainer();
        kernels::StepControlValues values;
        values.grad_factor = 0.5f;
        const kernels::Tensor control{reinterpret_cast<std::byte*>(&values),
                                      kernels::DType::u8,
                                      {static_cast<std::int64_t>(sizeof(values))}};
        trainer.params().finish_gathers(trainer.stream());  // of the initial values
        for (std::size_t v = 0; v < trainer.params().views(); ++v) {
          core::model::ParamView& view = trainer.params().view(v);
          const auto optimizer = core::train::make_optimizer(job, view, cpu.groups().tp(), cpu.backend());
          const auto logical = [&](const core::model::StateRun& run, std::int64_t i) {
            return view.update_range(run).logical_index(i);
          };
          for (std::int64_t step = 1; step <= 3; ++step) {
            for (const core::model::StateRun& run : view.state_runs()) {
              const core::model::StatePart& part = view.state_parts()[run.part];
              const std::uint64_t key =
                  kernels::hash_name(view.info(run.id).name, static_cast<std::uint64_t>(step));
              for (std::int64_t i = 0; i < run.count; ++i) {
                const float g = kernels::normal_at(key, static_cast<std::uint64_t>(logical(run, i)));
                if (part.grads.dtype == kernels::DType::f32) part.grads.as<float>()[run.begin + i] = g;
                else part.grads.as<kernels::Bf16>()[run.begin + i] = kernels::to_bf16(g);
              }
            }
            optimizer->update(trainer.stream(), {.step = step, .lr = 0.02, .control = control});
          }
          const std::scoped_lock lock(mutex);
          for (const core::model::StateRun& run : view.state_runs()) {
            const core::model::StatePart& part = view.state_parts()[run.part];
            const auto add = [&](const std::string& name, const kernels::Tensor& x) {
              for (std::int64_t i = 0; i < run.count; ++i) {
                const double value = value_at(x, run.begin + i);
                const auto [at, fresh] = elements[name].emplace(logical(run, i), value);
                if (!fresh && at->second != value)
                  throw std::logic_error(name + " differs between its holders");
              }
            };
            const std::string& name = view.info(run.id).name;
            add(name, part.master);
            for (std::size_t s = 0; s < part.states.size(); ++s)
              add(view.states()[s] + "." + name, part.states[s]);
          }
        }
      },
      devices_per_node);
  return elements;
}

}  // namespace

TEST_CASE("Muon's update is the same bit for bit on any layout, given the same gradients", "[muon]") {
  const std::string precision = GENERATE(
      "fp32", "bf16", "{compute: bf16, grads: bf16, master: bf16, moments: bf16, rounding: stochastic}");
  const Elements one = updated(muon_job(precision, ""));
  CHECK(one.count("momentum.layers.0.qkv.weight") == 1);
  CHECK(one.count("moment1.layers.0.qkv.weight") == 0);
  CHECK(one.count("moment2.layers.0.qkv.bias") == 1);
  CHECK(one.count("moment1.embed.weight") == 1);
  for (const std::string parallel :
       {"dp: 2, zero: 0", "dp: 2, zero: 1", "dp: 3, zero: 2", "dp: 3, zero: 3", "tp: 2", "tp: 4", "pp: 3",
        "tp: 2, dp: 2, zero: 0", "tp: 2, dp: 3, zero: 3", "tp: 4, dp: 2, zero: 1, pp: 2",
        "dp: 4, zero: 3, zero_group: 2", "tp: 2, dp: 4, zero: 2, zero_group: 2", "dp: 12, zero: 1",
        "tp: 2, pp: 2, dp: 2, zero: 3, order: tp-pp-dp"}) {
    CAPTURE(precision, parallel);
    CHECK(updated(muon_job(precision, parallel)) == one);
  }
  // Two levels of reduction: four data-parallel ranks on nodes of two devices.
  CHECK(updated(muon_job(precision, "dp: 4, zero: 1"), 2) == one);
  CHECK(updated(muon_job(precision, "tp: 2, dp: 4, zero: 3"), 4) == one);
}

TEST_CASE("Muon updates each expert's matrices by themselves, the same bit for bit on any layout",
          "[muon][experts]") {
  // At a width of 32 each matrix is aligned.
  const auto [precision, ffn] = GENERATE(table<std::string, std::string>({{"fp32", "32"}, {"bf16", "28"}}));
  const std::string model =
      ", experts: {count: 6, per_token: 2, ffn: " + ffn + ", shared_ffn: 36, dense_layers: 1}";
  const Elements one = updated(muon_job(precision, "", model));
  CHECK(one.count("momentum.layers.0.gate_up.weight") == 1);
  CHECK(one.count("momentum.layers.1.experts.gate_up.weight") == 1);
  CHECK(one.count("momentum.layers.1.experts.down.weight") == 1);
  CHECK(one.count("momentum.layers.1.shared.down.weight") == 1);
  CHECK(one.count("moment2.layers.1.router.weight") == 1);
  for (const std::string parallel :
       {"dp: 2, zero: 1", "dp: 3, zero: 3", "tp: 4", "tp: 2, dp: 3, zero: 2", "dp: 2, ep: 2, zero: 0",
        "dp: 6, ep: 3, zero: 1", "dp: 6, ep: 2, zero: 3", "tp: 2, dp: 6, ep: 3, zero: 2",
        "tp: 2, pp: 3, dp: 2, ep: 2, zero: 1", "cp: 2, dp: 3, ep: 6, zero: 3"}) {
    CAPTURE(precision, parallel);
    CHECK(updated(muon_job(precision, parallel, model)) == one);
  }
  // An expert's update is that of a matrix alone: it does not depend on how many there are. The first three
  // experts of six get the gradients of the three of a smaller model.
  const Elements few = updated(
      muon_job(precision, "",
               ", experts: {count: 3, per_token: 2, ffn: " + ffn + ", shared_ffn: 36, dense_layers: 1}"));
  for (const std::string name : {"momentum.layers.1.experts.down.weight", "layers.1.experts.down.weight"})
    for (const auto& [i, value] : few.at(name)) REQUIRE(one.at(name).at(i) == value);
}

TEST_CASE("matrices that a rank holds whole are exchanged with no other", "[muon][experts]") {
  const auto exchanges = [](const std::string& experts) {
    const core::job::JobSpec job =
        muon_job("fp32", "dp: 3, zero: 1",
                 ", experts: {" + experts + ", per_token: 2, shared_ffn: 36, dense_layers: 1}");
    parallel::Topology topology = test::cpu_topology(1);
    topology.devices_per_node = 64;
    const parallel::Layout layout = core::rank::layout_of(job, topology);
    const core::rank::RankRecord record =
        core::rank::record_rank(job, layout, 0, topology.device, core::train::count_slots(job, layout, 0));
    std::int64_t count = 0;
    for (const core::rank::RecordedEvent& event : record.after)
      count += event.kind == core::rank::RecordedEvent::Kind::issue &&
               record.collectives[static_cast<std::size_t>(event.index)].label == "directions";
    return count;
  };
  // Two layers of experts with 3 matrices each, and 7 others of each of 3 layers. A round of three matrices
  // sends twice.
  CHECK(exchanges("count: 4, ffn: 96") == 2 * (2 * 4 * 3 + 3 * 7) / 3);
  CHECK(exchanges("count: 6, ffn: 96") == 2 * (3 * 7) / 3);
}

TEST_CASE("a matrix of a Muon step equals the float64 iteration's result", "[muon]") {
  base::ThreadPool pool(2);
  kernels::CpuBackend backend(test::cpu_topology(2).device, pool);
  std::vector<std::byte> memory(std::size_t{16} << 20);
  kernels::Arena scratch("scratch", memory.data(), static_cast<std::int64_t>(memory.size()));
  const auto stream = backend.make_stream("compute", &scratch);
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {1, 30}, {17, 17}, {33, 70}, {64, 200}}) {
    CAPTURE(rows, columns);
    const auto m = static_cast<std::size_t>(rows), n = static_cast<std::size_t>(columns);
    kernels::Tensor x = scratch.take(kernels::DType::f32, {rows, columns}, kernels::MemoryTerm::workspace);
    kernels::Tensor other =
        scratch.take(kernels::DType::f32, {rows, columns}, kernels::MemoryTerm::workspace);
    std::vector<double> wanted(m * n);
    double norm = 0;
    for (std::size_t i = 0; i < m * n; ++i) {
      x.as<float>()[i] = kernels::normal_at(3, i) * 1e-3f;
      wanted[i] = static_cast<double>(x.as<float>()[i]);
      norm += wanted[i] * wanted[i];
    }
    for (double& w : wanted) w /= std::sqrt(norm) + 1e-7;
    const auto product = [](const std::vector<double>& a, const std::vector<double>& b, std::size_t r,
                            std::size_t k, std::size_t c, bool transposed) {
      std::vector<double> out(r * c, 0.0);
      for (std::size_t i = 0; i < r; ++i)
        for (std::size_t j = 0; j < c; ++j)
          for (std::size_t l = 0; l < k; ++l)
            out[i * c + j] += a[i * k + l] * (transposed ? b[j * k + l] : b[l * c + j]);
      return out;
    };
    for (int step = 0; step < 5; ++step) {
      const std::vector<double> gram = product(wanted, wanted, m, n, m, true);
      std::vector<double> poly = product(gram, gram, m, m, m, false);
      for (std::size_t i = 0; i < m * m; ++i) poly[i] = -4.7750 * gram[i] + 2.0315 * poly[i];
      std::vector<double> next = product(poly, wanted, m, m, n, false);
      for (std::size_t i = 0; i < m * n; ++i) next[i] += 3.4445 * wanted[i];
      wanted = next;
    }
    const kernels::Tensor got = core::train::newton_schulz(backend, *stream, x, other);
    // Sums of up to 200 products of numbers below 1, each with an error of 2^-24, through five iterations
    // that multiply a small singular value and its error by 3.4445: 2^-24 * sqrt(200) * 3.4445^5 is 4e-4.
    double worst = 0;
    for (std::size_t i = 0; i < m * n; ++i)
      worst = std::max(worst, std::abs(wanted[i] - static_cast<double>(got.as<float>()[i])));
    CHECK(worst < 4e-4);
    // The rows are nearly orthogonal: the iteration ends with singular values between 0.68 and 1.13, and a
    // random matrix that is not square has none near 0.
    if (columns < 2 * rows) continue;
    const std::vector<double> gram = product(wanted, wanted, m, n, m, true);
    for (std::size_t i = 0; i < m; ++i) {
      CHECK(gram[i * m + i] > 0.4);
      CHECK(gram[i * m + i] < 1.5);
    }
  }
}
