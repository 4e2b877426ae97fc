// Times whole training steps of a job on its device and prints one JSON line: see README.md beside this file.
//
//   train_bench JOB.yaml [--set KEY=VALUE]... [--warmup N] [--steps N] [--own-kernels]
//   train_bench JOB.yaml [--set KEY=VALUE]... --describe      what pytorch_train.py needs to know of the job
//
// A bf16 job on a CUDA device whose attention ran by our own kernels, or whose GEMMs were widened, fails:
// its row would name the library. With --own-kernels the row names our own kernels instead.
//
// Tokens are skewed, so that there is something to learn: token i of sample b of step t is vocab u^3, u in
// [0, 1) made of philox(t, i, b).

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/rank/device_rank.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/step_clock.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"

using namespace trainerd;
using Json = nlohmann::ordered_json;

namespace {

struct Args {
  std::string job;
  std::vector<std::string> overrides;
  std::int64_t warmup = 3, steps = 6;
  bool describe = false, own_kernels = false;
};

Args parse(int argc, char** argv) {
  Args args;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&] {
      if (i + 1 >= argc) throw std::invalid_argument(flag + " needs a value");
      return std::string(argv[++i]);
    };
    if (flag == "--set") args.overrides.push_back(value());
    else if (flag == "--warmup") args.warmup = std::stoll(value());
    else if (flag == "--steps") args.steps = std::stoll(value());
    else if (flag == "--describe") args.describe = true;
    else if (flag == "--own-kernels") args.own_kernels = true;
    else if (flag.starts_with("--") || !args.job.empty())
      throw std::invalid_argument("unknown option " + flag);
    else args.job = flag;
  }
  if (args.job.empty())
    throw std::invalid_argument(
        "usage: train_bench JOB.yaml [--set KEY=VALUE]... [--warmup N] [--steps N] "
        "[--own-kernels] [--describe]");
  return args;
}

Json describe(const core::job::JobSpec& job) {
  const core::job::ModelOptions& m = job.model;
  const core::job::OptimizerOptions& o = job.optimizer;
  return {{"name", job.name},
          {"seed", job.seed},
          {"threads", job.threads},
          {"layers", m.layers},
          {"hidden", m.hidden},
          {"heads", m.heads},
          {"kv_heads", m.kv_heads},
          {"head_dim", m.head_dim},
          {"ffn", m.ffn},
          {"vocab", m.vocab},
          {"seq_len", m.seq_len},
          {"norm", m.norm == core::job::Norm::rms ? "rms" : "layer"},
          {"norm_eps", m.norm_eps},
          {"positions", m.positions == core::job::Positions::rope ? "rope" : "learned"},
          {"rope_theta", m.rope_theta},
          {"rope_scaled", m.rope_scaling.kind != core::job::RopeScalingKind::none},
          {"window", m.attention.window},
          {"mlp", m.mlp == core::job::Mlp::swiglu ? "swiglu"
                  : m.mlp == core::job::Mlp::gelu ? "gelu"
                                                  : "geglu"},
          {"plain_norms", m.norm_placement == core::job::NormPlacement::pre &&
                              m.norm_weight == core::job::NormWeight::factor},
          {"scaled", m.scale_embeddings || m.attention.query_pre_attn_scalar > 0},
          {"plain_attention",
           m.attention.softcap == 0 && m.logit_softcap == 0 && !m.attention.sinks && m.rotary_fraction == 1},
          {"linear_bias", m.linear_bias},
          {"qkv_bias", m.qkv_bias},
          {"qk_norm", m.qk_norm},
          {"tie_embeddings", m.tie_embeddings},
          {"init", m.init},
          {"micro", job.batch.micro},
          {"microbatches", job.microbatches()},
          {"compute", kernels::name_of(job.precision.compute)},
          {"master", kernels::name_of(job.precision.master)},
          {"moments", kernels::name_of(job.precision.moments)},
          {"lr", o.lr},
          {"betas", {o.beta1, o.beta2}},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"grad_clip", o.grad_clip}};
}

Json run(const core::job::JobSpec& job, const Args& args) {
  const parallel::Topology topology = core::spec::job_topology(job);
  core::rank::DeviceRank rank(job, topology);
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  std::int64_t step = 0;
  core::train::SampleBatches batches(
      trainer.batch_shape(), [&](std::int64_t sample, core::train::HostSample& to) {
        std::vector<std::int32_t>& tokens = to.tokens_S1;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          const std::uint32_t bits =
              kernels::philox(static_cast<std::uint64_t>(step), i, static_cast<std::uint64_t>(sample))[0];
          const double u = static_cast<double>(bits >> 8) * 0x1p-24;
          tokens[i] = static_cast<std::int32_t>(static_cast<double>(job.model.vocab) * (u * u * u));
        }
      });
  std::vector<double> seconds, optimizer, losses;
  const kernels::Target& target = rank.backend().target();
  // As a worker does: of a device that runs behind the host, reports come one step late. A step's time is
  // from report to report.
  const std::int64_t late = target.runs_behind_host() ? core::train::StepClock::kMaxSteps - 1 : 0;
  double begin = base::monotonic_seconds();
  for (step = 1; step <= args.warmup + args.steps + late; ++step) {
    if (step <= args.warmup + args.steps) trainer.launch(step, batches, {});
    const std::int64_t reported = step - late;
    if (reported < 1) continue;
    const core::train::StepReport report = trainer.report();
    const double end = base::monotonic_seconds(), took = end - begin;
    begin = end;
    losses.push_back(report.loss);
    if (report.skipped)
      throw base::diverged_error("step " + std::to_string(reported) +
                                 ": the loss or a gradient is not finite");
    if (reported <= args.warmup) continue;
    seconds.push_back(took);
    optimizer.push_back(report.time[base::LedgerPart::optimizer]);
  }
  const std::string attention =
      args.own_kernels || target.attention_library.empty() ? "own kernels" : target.attention_library;
  return {{"impl", "trainerd"},
          {"job", job.name},
          {"compute", kernels::name_of(job.precision.compute)},
          {"master", kernels::name_of(job.precision.master)},
          {"gemm_algorithms", rank.gemm_algorithms().empty() ? "first" : "timed"},
          {"attention", job.attention.backward == kernels::Determinism::fast ? "fast" : "deterministic"},
          {"attention_library", attention},
          {"micro", job.batch.micro},
          {"microbatches", job.microbatches()},
          {"seq_len", job.model.seq_len},
          {"step_seconds", seconds},
          {"optimizer_seconds", optimizer},
          {"losses", losses},
          {"version", target.gemm_library},
          {"planned_bytes", rank.plan().memory.total_bytes()},
          {"own_attention_calls", rank.backend().counters().own_attention},
          {"widened_gemms", rank.backend().counters().widened_gemms},
          {"device", target.name},
          {"peak_flops", topology.peak.bf16},
          {"flops_per_token", core::job::flops_per_token(job.model)}};
}

/// Why the row is not what it says; empty where it is.
std::string misnamed(const Json& row, kernels::DeviceKind device) {
  const std::int64_t own = row.at("own_attention_calls"), widened = row.at("widened_gemms");
  if (device != kernels::DeviceKind::cuda || row.at("compute") != "bf16" || (own == 0 && widened == 0) ||
      row.at("attention_library") == "own kernels")
    return "";
  return std::to_string(own) + " calls of attention ran by our own kernels and " + std::to_string(widened) +
         " GEMMs were widened, and the row says " + row.at("attention_library").get<std::string>() +
         ": see `trainerd plan`, or give --own-kernels";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Args args = parse(argc, argv);
    const core::job::JobSpec job = core::spec::load_job(args.job, args.overrides);
    if (args.describe) return std::printf("%s\n", describe(job).dump().c_str()), 0;
    const Json row = run(job, args);
    std::printf("%s\n", row.dump().c_str());
    if (const std::string why = misnamed(row, core::spec::job_topology(job).device.kind); !why.empty())
      throw base::device_error(why);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_bench: %s\n", error.what());
    return 1;
  }
}
