// Times whole training steps of the benchmark model on the CPU world and prints one JSON line: see step.sh.
// The GEMM ceiling is the best median rate, over a few square sizes, of the same library on the same threads
// at the same precision, measured in this process before and after the steps.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/rank/device_rank.h"
#include "core/rank/gemm_peak.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "kernels/base/clock.h"
#include "kernels/tensor/rng.h"

using namespace trainerd;

namespace {

struct Args {
  std::int64_t vocab = 256;
  std::string precision = "fp32", recompute = "none", isa = "auto";
  int threads = 1;
  std::int64_t steps = 10, warmup = 3;
};

Args parse(int argc, char** argv) {
  Args args;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--vocab") args.vocab = std::stoll(value);
    else if (flag == "--precision") args.precision = value;
    else if (flag == "--recompute") args.recompute = value;
    else if (flag == "--warmup") args.warmup = std::stoll(value);
    else if (flag == "--isa") args.isa = value;
    else if (flag == "--threads") args.threads = std::stoi(value);
    else if (flag == "--steps") args.steps = std::stoll(value);
    else throw std::invalid_argument("unknown option " + flag);
  }
  return args;
}

core::job::JobSpec bench_job(const Args& args) {
  return core::spec::parse_job(
      "name: bench\nseed: 1\ndevice: cpu\nthreads: " + std::to_string(args.threads) + "\nisa: " + args.isa +
          "\n"
          "model: {layers: 6, hidden: 384, heads: 6, ffn: 1024, seq_len: 256, vocab: " +
          std::to_string(args.vocab) +
          "}\n"
          "batch: {global: 8, micro: 8}\nprecision: " +
          args.precision + "\nrecompute: {kind: " + args.recompute +
          "}\n"
          "optimizer: {name: adamw, lr: 1.0e-3, schedule: {kind: constant}}\nsteps: "
          "1000000\ndata: {format: synthetic}\n",
      "bench.yaml");
}

/// The table row of an operator.
std::string part_of(const std::string& op) {
  if (op == "linear_swiglu" || op == "linear_dgrad_swiglu") return "gemm+swiglu";
  if (op.rfind("linear", 0) == 0) return "gemm";
  if (op == "prepare_weight") return "weight packing";
  if (op.rfind("attention", 0) == 0) return "attention";
  if (op.rfind("ce_", 0) == 0) return "cross-entropy";
  if (op == "param_update" || op == "block_square_sums" || op == "total_square_sum" || op == "step_control")
    return "optimizer";
  if (op.rfind("add_norm", 0) == 0) return "norm";
  if (op.rfind("qk_norm", 0) == 0) return "rope";
  if (op.rfind("embedding", 0) == 0) return "embedding";
  return "other operators";
}

}  // namespace

int main(int argc, char** argv) {
  const Args args = parse(argc, argv);
  const core::job::JobSpec job = bench_job(args);
  std::map<std::string, double> current;
  bool observing = false;
  if (job.isa != core::job::IsaChoice::automatic) kernels::limit_gemm_library(core::job::most_isa(job));
  const parallel::Topology topology = core::spec::job_topology(job);
  core::rank::DeviceRank rank(job, topology, [&](const kernels::ObservedCall& call) {
    if (observing) current[part_of(name_of(call.op))] += call.seconds;
  });
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  std::int64_t step = 0;
  core::train::SampleBatches batches(
      trainer.batch_shape(), [&](std::int64_t sample, core::train::HostSample& to) {
        std::vector<std::int32_t>& tokens = to.tokens_S1;
        for (std::size_t i = 0; i < tokens.size(); ++i)
          tokens[i] = static_cast<std::int32_t>(
              kernels::philox(static_cast<std::uint64_t>(step), i, static_cast<std::uint64_t>(sample))[0] %
              static_cast<std::uint32_t>(args.vocab));
      });
  double ceiling = core::rank::measure_gemm_peak(rank.backend(), job.precision.compute);
  std::vector<double> seconds;
  std::vector<std::map<std::string, double>> parts;
  double loss = 0;
  for (step = 1; step <= args.warmup + args.steps; ++step) {
    current.clear();
    observing = true;
    const double start = base::monotonic_seconds();
    loss = trainer.step(step, batches, {}).loss;
    const double took = base::monotonic_seconds() - start;
    observing = false;
    if (step <= args.warmup) continue;
    seconds.push_back(took);
    parts.push_back(current);
  }
  ceiling = std::max(ceiling, core::rank::measure_gemm_peak(rank.backend(), job.precision.compute));

  std::vector<std::size_t> order(seconds.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return seconds[a] < seconds[b]; });
  const std::size_t median = order[order.size() / 2];
  double accounted = 0;
  std::string parts_text;
  for (const auto& [name, value] : parts[median]) {
    accounted += value;
    parts_text += "\"" + name + "\":" + std::to_string(value) + ",";
  }
  parts_text += "\"host\":" + std::to_string(std::max(0.0, seconds[median] - accounted));
  std::string steps_text;
  for (const double s : seconds) steps_text += (steps_text.empty() ? "" : ",") + std::to_string(s);
  std::printf(
      "{\"impl\":\"trainerd\",\"vocab\":%lld,\"precision\":\"%s\",\"recompute\":\"%s\",\"isa\":\"%s\","
      "\"threads\":%d,\"step_seconds\":[%s],"
      "\"tokens_per_step\":%lld,\"planned_bytes\":%lld,\"loss\":%.6f,\"reference_gemms\":%lld,\"ceiling_"
      "flops\":%.6e,\"parts\":{%s}}\n",
      static_cast<long long>(args.vocab), args.precision.c_str(), args.recompute.c_str(),
      kernels::to_string(topology.device.isa), args.threads, steps_text.c_str(),
      static_cast<long long>(job.tokens_per_step()), static_cast<long long>(rank.plan().memory.total_bytes()),
      loss, static_cast<long long>(rank.backend().counters().reference_gemms), ceiling, parts_text.c_str());
  return 0;
}
