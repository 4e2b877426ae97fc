// Times whole training steps of a job on its device and prints one JSON line: see README.md beside this file.
//
//   train_bench JOB.yaml [--set KEY=VALUE]... [--warmup N] [--steps N] [--own-kernels]
//   train_bench JOB.yaml [--set KEY=VALUE]... --describe      the job's facts for pytorch_train.py
//   train_bench JOB.yaml [--set KEY=VALUE]... --ledger [--warmup N]
//                                                what the operators of the step after N took: a line for each
//                                                class of calls, and one for the step
//
//   --gemm-workspace MIB, --head-chunk TOKENS    of a CUDA device, in place of its own choice
//   (kernels::Tuning)
//   --gemm-choices FILE    for `gemm_algorithms: timed`: the choices of an earlier run, or where this one
//   writes its own
//
// A bf16 job on a CUDA device whose attention ran by our own kernels, or whose GEMMs were widened, fails:
// its row would name the library. With --own-kernels the row names our own kernels instead.
//
// The distribution of tokens is skewed, so that the loss can fall: token i of sample b of step t is vocab
// u^3, with u in [0, 1) from philox(t, i, b).

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/rank/backend.h"
#include "core/rank/device_rank.h"
#include "core/rank/gemm_peak.h"
#include "core/spec/machines.h"
#include "core/spec/spec.h"
#include "core/train/step_clock.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/tensor/rng.h"
#include "tests/bench/gpu/device_rates.h"
#include "tests/bench/gpu/operator_ledger.h"

using namespace trainerd;
using Json = nlohmann::ordered_json;

namespace {

struct Args {
  std::string job;
  std::vector<std::string> overrides;
  std::int64_t warmup = 3, steps = 6;
  kernels::Tuning tuning;
  bool tuned = false;
  std::string gemm_choices;  ///< file
  bool own_kernels = false;
  enum class Want { rate, description, ledger } want = Want::rate;
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
    else if (flag == "--gemm-workspace")
      args.tuned = true, args.tuning.gemm_workspace_bytes = std::stoll(value()) << 20;
    else if (flag == "--head-chunk") args.tuned = true, args.tuning.head_chunk_tokens = std::stoll(value());
    else if (flag == "--gemm-choices") args.gemm_choices = value();
    else if (flag == "--describe") args.want = Args::Want::description;
    else if (flag == "--ledger") args.want = Args::Want::ledger;
    else if (flag == "--own-kernels") args.own_kernels = true;
    else if (flag.starts_with("--") || !args.job.empty())
      throw std::invalid_argument("unknown option " + flag);
    else args.job = flag;
  }
  if (args.job.empty())
    throw std::invalid_argument(
        "usage: train_bench JOB.yaml [--set KEY=VALUE]... [--warmup N] [--steps N] [--own-kernels] "
        "[--describe | --ledger]");
  if (args.warmup < 0 || args.steps < 1)
    throw std::invalid_argument("--warmup needs at least 0, --steps at least 1");
  if (args.tuning.gemm_workspace_bytes < 1 || args.tuning.head_chunk_tokens < 0)
    throw std::invalid_argument("--gemm-workspace needs at least 1, --head-chunk at least 0");
  return args;
}

parallel::Topology tuned_topology(const core::job::JobSpec& job, const Args& args) {
  parallel::Topology topology = core::spec::job_topology(job);
  if (topology.device.kind != kernels::DeviceKind::cuda && args.tuned)
    throw std::invalid_argument("--gemm-workspace and --head-chunk are for device: cuda");
  topology.device.tuning = args.tuning;
  return topology;
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
          {"scaled", m.scale_embeddings || m.attention.query_pre_attn_scalar > 0 || m.attention.scale > 0 ||
                         m.embedding_scale != 1 || m.residual_scale != 1 || m.logit_divisor != 1},
          {"plain_attention",
           m.attention.softcap == 0 && m.logit_softcap == 0 && !m.attention.sinks && m.rotary_fraction == 1},
          {"linear_bias", m.linear_bias || m.attention_bias || m.mlp_bias},
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

/// Batches of step `step`, which is read when a batch is made.
core::train::SampleBatches skewed_batches(const core::train::Trainer& trainer, std::int64_t vocab,
                                          const std::int64_t& step) {
  return {trainer.batch_shape(), [vocab, &step](std::int64_t sample, core::train::HostSample& to) {
            std::vector<std::int32_t>& tokens = to.tokens_S1;
            for (std::size_t i = 0; i < tokens.size(); ++i) {
              const std::uint32_t bits =
                  kernels::philox(static_cast<std::uint64_t>(step), i, static_cast<std::uint64_t>(sample))[0];
              const double u = static_cast<double>(bits >> 8) * 0x1p-24;
              tokens[i] = static_cast<std::int32_t>(static_cast<double>(vocab) * (u * u * u));
            }
          }};
}

void throw_if_skipped(const core::train::StepReport& report, std::int64_t step) {
  if (report.skipped)
    throw base::diverged_error("step " + std::to_string(step) + ": the loss or a gradient is not finite");
  if (report.outside_rank)
    throw base::data_error("step " + std::to_string(step) + ": token ids are outside the vocabulary");
}

/// The choices in the file; empty if there is none.
std::string read_choices(const Args& args) {
  std::ifstream file(args.gemm_choices);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_choices(const Args& args, const std::string& choices) {
  if (choices.empty()) return;
  const std::string part = args.gemm_choices + ".part";
  std::ofstream file(part);
  file << choices;
  file.close();
  if (!file || std::rename(part.c_str(), args.gemm_choices.c_str()) != 0)
    throw std::runtime_error(args.gemm_choices + ": cannot be written");
}

Json run(const core::job::JobSpec& job, const Args& args) {
  const parallel::Topology topology = tuned_topology(job, args);
  const std::string kept = read_choices(args);
  core::rank::DeviceRank rank(job, topology, {}, kernels::Observation::each, kept);
  if (!args.gemm_choices.empty() && kept.empty()) write_choices(args, rank.gemm_algorithms());
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  std::int64_t step = 0;
  core::train::SampleBatches batches = skewed_batches(trainer, job.model.vocab, step);
  std::vector<double> seconds, optimizer, losses;
  const kernels::Target& target = rank.backend().target();
  // As in a worker: if the device runs behind the host, reports come one step late. A step's time is the time
  // between two reports.
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
    throw_if_skipped(report, reported);
    if (reported <= args.warmup) continue;
    seconds.push_back(took);
    optimizer.push_back(report.time[base::LedgerPart::optimizer]);
  }
  const std::string attention =
      args.own_kernels || target.attention_library.empty() ? "own kernels" : target.attention_library;
  const kernels::GraphUse graphs = rank.backend().graph_use();
  return {{"impl", "trainerd"},
          {"job", job.name},
          {"compute", kernels::name_of(job.precision.compute)},
          {"master", kernels::name_of(job.precision.master)},
          {"gemm_algorithms", rank.gemm_algorithms().empty() ? "first" : "timed"},
          {"gemm_workspace_bytes", topology.device.tuning.gemm_workspace_bytes},
          {"head_chunk_tokens", topology.device.tuning.head_chunk_tokens},
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
          {"missed_gemm_choices", rank.backend().counters().missed_gemm_choices},
          {"graphs", graphs.graphs},
          {"graph_calls", graphs.graph_calls},
          {"graph_launches", graphs.launches},
          {"graph_issue_seconds", graphs.issue_seconds},
          {"graph_device_seconds", graphs.device_seconds},
          {"no_graphs", graphs.without},
          {"device", target.name},
          {"peak_flops", topology.peak.bf16},
          {"flops_per_token", core::job::flops_per_token(job.model)}};
}

/// Rates for floors: copy bandwidth and the peak of the job's dtype, which is the vendor's figure or measured
/// on a CPU.
bench::OperatorLedger::Rates floor_rates(const core::job::JobSpec& job, const parallel::Topology& topology) {
  base::ThreadPool pool(topology.device.threads);
  const auto backend = core::rank::make_backend(topology, pool, 0);
  return {bench::copy_rate(*backend, bench::copy_bytes(topology.device)),
          core::rank::peak_of(topology, *backend, job.precision.compute).flops_per_second()};
}

void print_ledger(const core::job::JobSpec& job, const Args& args) {
  const parallel::Topology topology = tuned_topology(job, args);
  // Measured before the step's memory is allocated.
  const bench::OperatorLedger::Rates rates = floor_rates(job, topology);
  bench::OperatorLedger ledger(rates);
  bool observed = false;
  const auto observe = [&](const kernels::ObservedCall& call) {
    if (observed) ledger.add(call);
  };
  core::rank::DeviceRank rank(job, topology, observe, kernels::Observation::settled);
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  std::int64_t step = 0;
  core::train::SampleBatches batches = skewed_batches(trainer, job.model.vocab, step);
  double took = 0;
  for (step = 1; step <= args.warmup + 1; ++step) {
    rank.settle_observed();
    observed = step > args.warmup;
    const double begin = base::monotonic_seconds();
    throw_if_skipped(trainer.step(step, batches, {}), step);
    took = base::monotonic_seconds() - begin;
  }
  rank.settle_observed();
  for (const Json& row : ledger.rows(job.name)) std::printf("%s\n", row.dump().c_str());
  const Json total = {{"kind", "ledger total"},
                      {"job", job.name},
                      {"device", topology.device.name},
                      {"step_seconds", took},
                      {"operator_seconds", ledger.seconds()},
                      {"floor_seconds", ledger.floor_seconds()},
                      {"bytes_per_second", rates.bytes_per_second},
                      {"flops_per_second", rates.flops_per_second},
                      {"own_attention_calls", rank.backend().counters().own_attention},
                      {"widened_gemms", rank.backend().counters().widened_gemms}};
  std::printf("%s\n", total.dump().c_str());
}

/// Reason why the row's `attention_library` or `compute` would be wrong; empty if they are right.
std::string misnamed(const Json& row, kernels::DeviceKind device) {
  if (device != kernels::DeviceKind::cuda || row.at("compute") != "bf16") return "";
  const std::int64_t own = row.at("own_attention_calls"), widened = row.at("widened_gemms");
  const std::string says = row.at("attention_library");
  if (widened > 0) return std::to_string(widened) + " GEMMs were widened: the row is of fp32 products";
  if ((own > 0) == (says == "own kernels")) return "";
  return std::to_string(own) + " calls of attention ran by our own kernels, and the row says " + says +
         (own > 0 ? ": see `trainerd plan`, or give --own-kernels" : "");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Args args = parse(argc, argv);
    const core::job::JobSpec job = core::spec::load_job(args.job, args.overrides);
    if (args.want == Args::Want::ledger) return print_ledger(job, args), 0;
    if (args.want == Args::Want::description) return std::printf("%s\n", describe(job).dump().c_str()), 0;
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
