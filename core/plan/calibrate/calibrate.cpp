#include "core/plan/calibrate/calibrate.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <memory>
#include <vector>

#include "core/plan/calibrate/calibrate_links.h"
#include "core/plan/calibrate/operator_samples.h"
#include "core/rank/device_rank.h"
#include "core/rank/gemm_peak.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"
#include "parallel/comm/local/local_world.h"

namespace trainerd::core::plan {
namespace {

/// Models of the timed steps. Together they run every operator over a range of sizes, inside and outside the
/// caches. Models are in order of size: the first kFewestModels have every operator.
constexpr std::size_t kFewestModels = 3;
constexpr std::array kModels = {
    "model: {layers: 2, hidden: 64, heads: 2, ffn: 192, seq_len: 64, vocab: 256}\nbatch: {global: 4, micro: "
    "2}\n",
    "model: {layers: 2, hidden: 128, heads: 4, ffn: 384, seq_len: 64, vocab: 512}\nbatch: {global: 64, "
    "micro: 64}\n",
    "model: {layers: 2, hidden: 128, heads: 4, ffn: 512, seq_len: 128, vocab: 1024, mlp: gelu, norm: layer, "
    "positions: learned, bias: true}\n"
    "batch: {global: 8, micro: 4}\n",
    "model: {layers: 2, hidden: 256, heads: 4, kv_heads: 2, ffn: 704, seq_len: 256, vocab: 4096}\nbatch: "
    "{global: 2, micro: 1}\n",
    "model: {layers: 1, hidden: 384, heads: 6, ffn: 1536, seq_len: 512, vocab: 256, mlp: gelu, norm: layer, "
    "positions: learned}\n"
    "batch: {global: 4, micro: 4}\n",
    "model: {layers: 1, hidden: 384, heads: 6, ffn: 1024, seq_len: 256, vocab: 16000}\nbatch: {global: 4, "
    "micro: 4}\n",
    "model: {layers: 1, hidden: 512, heads: 8, kv_heads: 4, ffn: 1408, seq_len: 128, vocab: 512}\nbatch: "
    "{global: 32, micro: 16}\n",
    "model: {layers: 1, hidden: 768, heads: 12, ffn: 3072, seq_len: 512, vocab: 8192, mlp: gelu, norm: "
    "layer, positions: learned, bias: true}\n"
    "batch: {global: 1, micro: 1}\n",
    "model: {layers: 1, hidden: 1024, heads: 8, ffn: 2816, seq_len: 1024, vocab: 256}\nbatch: {global: 1, "
    "micro: 1}\n",
};

constexpr std::array kPrecisions = {"fp32", "bf16"};

job::JobSpec job_of(const char* model, const char* precision) {
  return spec::parse_job(std::string("name: calibrate\nseed: 1\ndevice: cpu\n") + model +
                             "precision: " + precision +
                             "\noptimizer: {name: adamw, lr: 1.0e-3, schedule: {kind: constant}}\nsteps: "
                             "1000000\ndata: {format: synthetic}\n",
                         "calibrate.yaml");
}

/// CPU time of this thread.
double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Trainer of one rank and one model, with timed operators.
class TimedModel {
 public:
  TimedModel(const job::JobSpec& job, const parallel::Topology& topology)
      : job_(job),
        one_thread_(topology.device.kind == kernels::DeviceKind::cpu && topology.device.threads == 1),
        rank_(job, topology, [this](const kernels::ObservedCall& call) { on_call(call); }) {
    rank_.trainer().initialise();
    OperatorSamples unused;
    run(unused);  // records the order of parameters, creates primitives, touches memory
  }

  void run(OperatorSamples& into) {
    into_ = &into;
    into.drop_step();
    ++step_;
    double reading = 0;
    train::SampleBatches batches(
        rank_.trainer().batch_shape(), [&](std::int64_t sample, train::HostSample& to) {
          std::vector<std::int32_t>& tokens = to.tokens_S1;
          const double start = base::monotonic_seconds();
          for (std::size_t i = 0; i < tokens.size(); ++i)
            tokens[i] = static_cast<std::int32_t>(
                kernels::philox(static_cast<std::uint64_t>(step_), i, static_cast<std::uint64_t>(sample))[0] %
                static_cast<std::uint32_t>(job_.model.vocab));
          reading += base::monotonic_seconds() - start;
        });
    const double start = base::monotonic_seconds(), start_processor = last_ = processor_seconds();
    rank_.trainer().step(step_, batches, {});
    double took = base::monotonic_seconds() - start;
    if (one_thread_) took = std::min(took, processor_seconds() - start_processor);
    into.end_step(took - reading);
    into_ = nullptr;
  }

  kernels::Backend& backend() { return rank_.backend(); }

 private:
  // Excludes time that other processes take from the core: with one compute thread, an operator's time is at
  // most the thread's CPU time since the previous call.
  void on_call(kernels::ObservedCall call) {
    if (into_ == nullptr) return;  // still in construction
    if (one_thread_) {
      const double now = processor_seconds();
      call.seconds = std::min(call.seconds, now - last_);
      last_ = now;
    }
    into_->add(call);
  }

  job::JobSpec job_;
  OperatorSamples* into_ = nullptr;
  std::int64_t step_ = 0;
  bool one_thread_;
  double last_ = 0;
  rank::DeviceRank rank_;
};

std::vector<job::JobSpec> jobs() {
  std::vector<job::JobSpec> jobs;
  for (const char* model : kModels)
    for (const char* precision : kPrecisions) jobs.push_back(job_of(model, precision));
  return jobs;
}

parallel::Topology topology_for(const CalibrateOptions& options) {
  if (options.device == job::DeviceChoice::cuda) {
    parallel::Topology cuda = parallel::detect_cuda_topology(1);
    if (options.ranks > 1)
      throw base::spec_error(
          "--ranks: links between CUDA devices are not measured by calibrate; leave it at 1");
    return cuda;
  }
  const int cores = kernels::detect_cpu().threads;
  if (options.threads > cores)
    throw base::spec_error("--threads: a rank cannot have " + std::to_string(options.threads) +
                           " threads on " + std::to_string(cores) +
                           " cores (nearest valid: " + std::to_string(cores) + ")");
  const std::int64_t ranks =
      options.ranks > 0 ? options.ranks : std::max<std::int64_t>(1, cores / options.threads);
  if (ranks * options.threads > cores)
    throw base::spec_error(
        "--ranks: " + std::to_string(ranks) + " ranks of " + std::to_string(options.threads) +
        " threads need more than the " + std::to_string(cores) +
        " cores of this machine (nearest valid: " + std::to_string(cores / options.threads) + ")");
  return parallel::detect_topology(static_cast<int>(options.threads), ranks);
}

/// State that the threads of all ranks share during measurement.
struct Shared {
  parallel::LocalWorld world;
  std::vector<OperatorSamples> alone, crowded;  ///< samples of rank 0, by job
  int rounds = 0;
  std::size_t models = 0;  ///< number of models that were measured
  double peak_fp32 = 0, peak_bf16 = 0;
};

constexpr int kStepsOfRound = 2;

/// Times on base::monotonic_seconds(). No round begins after `until`, and a round is cut short after `late`.
struct Limits {
  double until = 0, late = 0;
};

void measure_rank(Shared& shared, std::int64_t rank, const parallel::Topology& node, const Limits& limits,
                  const CalibrateOptions& options) {
  parallel::Topology mine = node;
  mine.devices_per_node = 1;
  const std::vector<job::JobSpec> all_jobs = jobs();
  if (rank == 0) shared.alone.resize(all_jobs.size()), shared.crowded.resize(all_jobs.size());
  const auto base_model = std::make_unique<TimedModel>(all_jobs.front(), mine);
  std::vector<std::int64_t> all;
  for (std::int64_t r = 0; r < node.devices_per_node; ++r) all.push_back(r);
  kernels::Backend& backend = base_model->backend();
  const auto stream = backend.make_stream("calibrate", nullptr);
  const auto group = shared.world.communicator(rank, backend, all, "calibrate");
  const auto meet = [&] { group->barrier(*stream, {.label = "calibrate"})->wait(*stream); };
  // All ranks use the clock of rank 0.
  const auto passed = [&](double end) {
    std::int32_t over = base::monotonic_seconds() < end ? 0 : 1;
    const kernels::Tensor word{reinterpret_cast<std::byte*>(&over), kernels::DType::i32, {1}};
    if (all.size() > 1) group->broadcast(*stream, word, 0, {.label = "calibrate"})->wait(*stream);
    return over != 0;
  };
  do {
    // Only one model exists at a time: all of them together would take gigabytes per rank.
    for (std::size_t j = 0; j < all_jobs.size(); ++j) {
      const std::size_t model_index = j / kPrecisions.size();
      if (j % kPrecisions.size() == 0 && model_index >= kFewestModels && passed(limits.late)) break;
      if (rank == 0 && options.progress) {
        const double left = std::max(0.0, limits.until - base::monotonic_seconds());
        options.progress("operators, round " + std::to_string(shared.rounds + 1) + ", model " +
                             std::to_string(model_index + 1) + " of " + std::to_string(kModels.size()),
                         options.seconds > 0 ? 1 - left / options.seconds : 1);
      }
      TimedModel model(all_jobs[j], mine);
      OperatorSamples elsewhere;
      for (int step = 0; step < kStepsOfRound; ++step) {
        if (all.size() > 1) meet();
        if (rank == 0) model.run(shared.alone[j]);
        if (all.size() == 1) continue;
        meet();
        model.run(rank == 0 ? shared.crowded[j] : elsewhere);
      }
      if (all.size() > 1) meet();
      if (rank == 0) shared.models = std::max(shared.models, model_index + 1);
    }
    if (rank == 0) {
      shared.peak_fp32 = std::max(shared.peak_fp32, rank::measure_gemm_peak(backend, kernels::DType::f32));
      shared.peak_bf16 = std::max(shared.peak_bf16, rank::measure_gemm_peak(backend, kernels::DType::bf16));
      ++shared.rounds;
    }
  } while (!passed(limits.until));
}

}  // namespace

parallel::Topology calibrated_topology(const job::JobSpec& job, double seconds) {
  if (job.cluster.preset != "local")
    throw base::spec_error("--calibrate: measures this machine, and the job is for " + job.cluster.preset +
                           ": leave out --calibrate, or cluster.preset");
  const parallel::Topology here = spec::job_topology(job);
  CalibrateOptions options{.seconds = seconds};
  if (here.device.kind == kernels::DeviceKind::cuda) {
    options.device = job::DeviceChoice::cuda;
  } else {
    // A job may have more ranks than cores. Measure only as many as the cores allow.
    const std::int64_t cores = kernels::detect_cpu().threads;
    options.threads = std::min<std::int64_t>(here.device.threads, cores);
    options.ranks = std::min(here.devices_per_node, cores / options.threads);
  }
  return spec::with_rates(here, calibrate(options).topology);
}

Calibration calibrate(const CalibrateOptions& options) {
  Calibration made;
  made.topology = topology_for(options);
  parallel::Topology& node = made.topology;
  parallel::MeasuredRates& rates = node.measured;
  rates.devices = node.devices_per_node;
  const double now = base::monotonic_seconds();
  const Limits limits{.until = now + options.seconds, .late = now + 2 * options.seconds};
  Shared shared{.world = parallel::LocalWorld(node.devices_per_node), .alone = {}, .crowded = {}};
  shared.world.run([&](std::int64_t rank) { measure_rank(shared, rank, node, limits, options); });

  std::vector<OperatorSamples::Sample> alone, crowded;
  std::vector<double> host;
  double host_seconds = 0, step_seconds = 0;
  for (std::size_t j = 0; j < shared.alone.size(); ++j) {
    const OperatorSamples& mine = shared.alone[j];
    if (mine.operators() == 0) continue;  // not measured in the time budget
    for (const auto& sample : mine.samples()) alone.push_back(sample);
    for (const auto& sample : shared.crowded[j].samples()) crowded.push_back(sample);
    host.push_back(mine.host_seconds() / mine.operators());
    host_seconds += mine.host_seconds(), step_seconds += mine.step_seconds();
  }
  FittedCurves fitted = fit_curves(alone);
  rates.alone = std::move(fitted.curves);
  rates.crowded = fit_curves(crowded).curves;
  rates.operator_seconds = median(host);
  made.rounds = shared.rounds;
  made.models = static_cast<int>(shared.models);
  made.fit_error = fitted.error;
  made.host_share = host_seconds / step_seconds;
  if (options.progress) options.progress("links", 1);
  if (node.devices_per_node > 1) rates.collectives = measure_collectives(node, limits.late);
  node.peak.fp32 = shared.peak_fp32;
  node.peak.bf16 = shared.peak_bf16;
  return made;
}

}  // namespace trainerd::core::plan
