// Formats a plan as text and as JSON.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/plan/cost/cost_model.h"
#include "core/plan/cost/units.h"
#include "core/plan/predict/plan.h"
#include "io/text/json.h"

namespace trainerd::core::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFlopsConvention =
    "model FLOPs: 6 x (parameters in matrix products) + 6 x layers x heads x head_dim x seq_len a token "
    "(causal attention, half of the full one; in sliding layers what the window leaves); with adapters 4 x "
    "those parameters, as they have no gradients, + 6 x those of the adapters; recomputation does not count";
constexpr double kDay = 86400;

double devices_of(const Plan& plan) { return static_cast<double>(plan.job.parallel.ranks()); }

std::string layers_text(const StagePlan& stage) {
  std::string text;
  for (const parallel::ChunkSpan& span : stage.chunks) {
    text += text.empty() ? "" : " | ";
    if (span.embedding) text += "embedding ";
    if (span.layers > 0) text += std::to_string(span.first_layer);
    if (span.layers > 1) text += "-" + std::to_string(span.first_layer + span.layers - 1);
    if (span.head) text += " head";
  }
  return text;
}

/// The largest first.
std::string terms_text(const std::map<std::string, std::int64_t>& bytes) {
  std::vector<std::pair<std::string, std::int64_t>> terms(bytes.begin(), bytes.end());
  std::stable_sort(terms.begin(), terms.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [term, size] : terms)
    if (gib(size) >= 0.005) text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", term, gib(size));
  return text;
}

/// Stages that differ only in their layers share one line.
std::string memory_text(const Plan& plan) {
  std::string text = fmt::format("\nmemory of a device, of {:.1f} GiB\n", gib(plan.device_bytes));
  for (std::size_t i = 0; i < plan.stages.size();) {
    std::size_t next = i + 1;
    while (next < plan.stages.size() && plan.stages[next].terms == plan.stages[i].terms) ++next;
    const StagePlan& stage = plan.stages[i];
    const std::string name =
        next == i + 1 ? fmt::format("stage {}", i) : fmt::format("stages {}-{}", i, next - 1);
    text += fmt::format("  {:<12} {:7.2f} GiB {:5.1f}%  ", name, gib(stage.bytes),
                        100.0 * gib(stage.bytes) / gib(plan.device_bytes));
    text += terms_text(stage.terms);
    text += next == i + 1 ? fmt::format("  (layers {})\n", layers_text(stage)) : "\n";
    if (!stage.host_terms.empty())
      text += fmt::format("    on its host {:7.2f} GiB         {}\n", gib(stage.memory.host_bytes()),
                          terms_text(stage.host_terms));
    i = next;
  }
  if (plan.staging_bytes > 0)
    text += fmt::format("  on its host, for staging: {:.3f} GiB\n", gib(plan.staging_bytes));
  return text;
}

std::string traffic_text(const Plan& plan) {
  std::string text = "\ncommunication per device and step\n";
  if (plan.communication.empty()) return text + "  none\n";
  for (const TrafficPlan& t : plan.communication) {
    const std::string ranks =
        t.size == 1 ? "its own link" : fmt::format("{:>6} ranks over {}", t.size, t.link);
    text += fmt::format("  {:<9} {:<31} {:>8} calls {:>9}", t.group, ranks, t.calls, amount(t.bytes));
    text += plan.timed ? fmt::format("  {:>9} when nothing hides it\n", duration(t.seconds)) : "\n";
  }
  return text;
}

/// Names the largest loss of time besides the model's operators, and how to reduce it.
std::string advice(const Plan& plan) {
  const base::TimeLedger& l = plan.time.mean;
  const parallel::ParallelOptions& p = plan.job.parallel;
  struct LostTime {
    double seconds;
    std::string text;
  };
  std::vector<LostTime> losses = {
      {l[base::LedgerPart::exposed_tp],
       std::string("tensor parallelism: a smaller tp needs less of it") +
           (p.tp_overlap_chunks == 1 ? ", parallel.tp_overlap_chunks runs it behind the products" : "")},
      {l[base::LedgerPart::exposed_cp], "context parallelism: a smaller parallel.cp gathers less"},
      {l[base::LedgerPart::exposed_ep],
       std::string("expert parallelism: a smaller parallel.ep sends less") +
           (p.tp > 1 && !p.whole_experts()
                ? std::string(", parallel.etp: 1 ") + (p.sequence_parallel ? "" : "with sequence_parallel ") +
                      "sends each token from one rank of tp alone"
                : "") +
           (p.ep_comm == parallel::ExpertComm::all_gather
                ? ", parallel.ep_comm: all_to_all may, inside NVLink"
                : "") +
           (p.pp > 1 && p.schedule != parallel::ScheduleKind::dualpipe_v ? ", schedule: dualpipe-v hides it"
                                                                         : "")},
      {l[base::LedgerPart::exposed_dp],
       p.overlap_grad_reduce
           ? "gradients and parameters: a larger parallel.bucket_bytes makes fewer and longer collectives; "
             "more microbatches per step, or a smaller zero, hide them"
           : "gradients: set parallel.overlap_grad_reduce"},
      {l[base::LedgerPart::bubble],
       std::string("the pipeline's bubble: more microbatches make it smaller") +
           (p.virtual_stages == 1 ? ", and schedule: zb-v or interleaved with virtual_stages does" : "")},
      {l[base::LedgerPart::exposed_host],
       p.offloads_state()
           ? "copies from and to the host: a larger batch.micro copies parameters and gradients less often"
           : "copies from and to the host: parallel.offload_activations copies each layer's input twice"},
      {l[base::LedgerPart::optimizer],
       p.offloads_state() || plan.job.optimizer.offload
           ? "the update, which reads and writes the host's memory: a larger batch.global needs it less often"
           : "the update: a zero of 1 or more shares it over the data-parallel ranks"},
      {plan.attention.limited_seconds - plan.attention.fast_seconds,
       "attention's deterministic backward of long sequences: attention: fast, whose last bits depend on "
       "timing, takes that much less"},
  };
  const auto worst = std::max_element(losses.begin(), losses.end(), [](const LostTime& a, const LostTime& b) {
    return a.seconds < b.seconds;
  });
  const double share = worst->seconds / plan.time.step_seconds;
  if (share < 0.02)
    return "  operators take nearly all of the step: what is left to gain is in their own efficiency\n";
  return fmt::format("  after the operators most goes to ({:.1f}%) {}\n", 100 * share, worst->text);
}

/// For a job that leaves a GPU's tensor cores unused.
std::string precision_advice(const Plan& plan) {
  const parallel::PeakRates& peak = plan.topology.peak;
  if (plan.topology.device.kind != kernels::DeviceKind::cuda ||
      plan.job.precision.compute != kernels::DType::f32 || peak.fp32 <= 0 || peak.bf16 <= peak.fp32)
    return "";
  return fmt::format(
      "  in fp32 the device's peak is {:.0f} TFLOP/s: precision: bf16 computes on tensor cores, {:.0f} "
      "TFLOP/s\n",
      peak.fp32 / 1e12, peak.bf16 / 1e12);
}

/// Number and seconds of the steps of a smaller batch.
struct RampTotals {
  std::int64_t steps = 0;
  double seconds = 0;
};
RampTotals ramp_totals(const Plan& plan) {
  RampTotals all;
  for (const RampPlan& stage : plan.ramp) {
    all.steps += stage.span.steps;
    all.seconds += static_cast<double>(stage.span.steps) * stage.step_seconds;
  }
  return all;
}

std::string ramp_text(const Plan& plan) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, plan.ramp.size()); ++i)
    text += fmt::format("  {} steps of {} sequences before: {} each\n", plan.ramp[i].span.steps,
                        plan.ramp[i].span.global, duration(plan.ramp[i].step_seconds));
  if (plan.ramp.size() > kShown)
    text += fmt::format("  and {} more stages: --json has all\n", plan.ramp.size() - kShown);
  return text;
}

/// Seconds to train on `tokens` from step 1, including verified steps.
double budget_seconds(const Plan& plan, double tokens) {
  double seconds = 0;
  for (const RampPlan& stage : plan.ramp) {
    const double of_step = static_cast<double>(stage.span.global * plan.job.model.seq_len),
                 taken = std::min(tokens, of_step * static_cast<double>(stage.span.steps));
    seconds += taken / of_step * stage.step_seconds;
    tokens -= taken;
  }
  return seconds + tokens / (plan.tokens_per_second_per_device * devices_of(plan)) *
                       (1 + plan.verify_seconds / plan.time.step_seconds);
}

std::string time_text(const Plan& plan, double tokens) {
  if (!plan.timed)
    return "\ntime\n  not predicted: " + plan.topology.name +
           " has no operator rates: " + how_to_get_rates(plan.topology, plan.job) + "\n";
  const double step = plan.time.step_seconds, devices = devices_of(plan);
  std::string text = fmt::format("\ntime of a step: {}\n", duration(step));
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    if (const double seconds = plan.time.mean[part.part]; seconds > 0.0005 * step)
      text += fmt::format("  {:<15} {:5.1f}%  {}\n", part.name, 100 * seconds / step, duration(seconds));
  text += ramp_text(plan);
  text += advice(plan) + precision_advice(plan);
  text += fmt::format("  bubble {:.1f}% of the pipeline's time\n", 100 * plan.time.bubble);
  text += fmt::format(
      "  {:.0f} tokens/s a device, {:.3g} in all; {:.0f} TFLOP/s a device, MFU {:.1f}% ({:.0f} TFLOP/s by "
      "operators)\n",
      plan.tokens_per_second_per_device, plan.tokens_per_second_per_device * devices,
      plan.model_tflops_per_device, 100 * plan.mfu, plan.hardware_tflops_per_device);
  if (plan.verify_seconds > 0)
    text += fmt::format("  supervise.verify adds {} per step on average ({:.2f}%), every {} steps\n",
                        duration(plan.verify_seconds), 100 * plan.verify_seconds / step,
                        plan.job.supervise.verify_every);
  if (plan.canary_seconds > 0)
    text += fmt::format("  each start computes a step of few tokens first (supervise.preflight): {}\n",
                        duration(plan.canary_seconds));
  const double seconds = budget_seconds(plan, tokens);
  if (tokens > 0)
    text += fmt::format("  {:.3g} tokens: {}, {:.3g} device-hours without failures\n", tokens,
                        duration(seconds), seconds / 3600 * devices);
  return text;
}

std::string checkpoint_text(const Plan& plan) {
  const CheckpointPlan& c = plan.checkpoint;
  std::string text = fmt::format("\ncheckpoint: {}", amount(static_cast<double>(c.bytes)));
  if (c.snapshot_seconds > c.stall_seconds)
    text += fmt::format(", copied from the devices in {}, beside the step", duration(c.snapshot_seconds));
  if (c.stall_seconds > 0) text += fmt::format(", checkpoint stall {}", duration(c.stall_seconds));
  if (c.failure_seconds > 0) text += fmt::format("; a failure every {}", duration(c.failure_seconds));
  if (c.interval_seconds > 0)
    text +=
        fmt::format("; saving every {} wastes least, if storage takes {} a second",
                    duration(c.interval_seconds), amount(static_cast<double>(c.bytes) / c.interval_seconds));
  return text + "\n";
}

Json memory_json(const Plan& plan) {
  Json memory = {{"device_bytes", plan.device_bytes},
                 {"peak_bytes", plan.peak_bytes},
                 {"worst_stage", plan.worst_stage}};
  Json& stages = memory["stages"] = Json::array();
  for (const StagePlan& stage : plan.stages) {
    Json regions = Json::object();
    for (const auto& region : stage.memory.regions) regions[region.name] = region.bytes;
    stages.push_back({{"layers", layers_text(stage)},
                      {"bytes", stage.bytes},
                      {"terms", stage.terms},
                      {"host_terms", stage.host_terms},
                      {"regions", regions}});
  }
  return memory;
}

}  // namespace

std::string near_text(const job::JobSpec& job, const parallel::Topology& topology,
                      const std::vector<NearLayout>& near) {
  std::string text;
  const LeastState least = least_state(job, topology);
  if (least.devices > job.parallel.ranks())
    text = fmt::format(
        "  no layout of {} ranks fits: parameters, gradients and optimizer states alone need {:.1f} GiB, the "
        "memory of {} devices\n",
        job.parallel.ranks(), gib(least.bytes), least.devices);
  else if (!least.fits)
    text = fmt::format(
        "  no layout of {} ranks fits: snapshots{} alone need {:.1f} GiB, and their nodes have less memory\n",
        job.parallel.ranks(),
        job.optimizer.offload || job.parallel.offloads_state() ? " and offloaded state" : "",
        gib(least.host_bytes));
  else if (near.empty()) text = "  no layout of these ranks fits: use more of them\n";
  else if (!near.front().fits) text = "  no layout of these ranks fits: use more of them; nearest come\n";
  for (const NearLayout& n : near)
    text += fmt::format("  {}{} ({:.1f} GiB{})\n", n.fits ? "fits with " : "  ",
                        n.change.empty() ? "the job's own" : n.change, gib(n.peak_bytes),
                        n.step_seconds > 0 ? ", " + duration(n.step_seconds) + " per step" : "");
  return text;
}

namespace {

/// Empty if there are no padding sequences.
std::string padding_text(const job::JobSpec& job) {
  const std::int64_t padding = job.padding_sequences();
  if (padding == 0) return "";
  return fmt::format(
      "padding: {} of {} sequences of a step, as micro {} x dp {} does not divide the global batch of {}\n",
      padding, job.batch.global + padding, job.batch.micro, job.parallel.dp, job.batch.global);
}

/// The job's machines and layout, and whether it fits.
std::string head_text(const Plan& plan) {
  std::string text = fmt::format("{} on {:.0f} x {} ({}): {}\n", plan.job.name, devices_of(plan),
                                 plan.topology.device.name, plan.topology.name, plan.layout);
  if (plan.job.model.lora.on())
    text +=
        fmt::format("{}: {:.3g} M of {:.4g} M parameters are trained\n", job::to_string(plan.job.model.lora),
                    static_cast<double>(job::count_parameters(plan.job.model).adapters) / 1e6,
                    static_cast<double>(job::count_parameters(plan.job.model).total +
                                        job::count_parameters(plan.job.model).adapters) /
                        1e6);
  text +=
      plan.fits ? fmt::format("fits: {:.1f} of {:.1f} GiB\n", gib(plan.peak_bytes), gib(plan.device_bytes))
      : plan.fit.on_device && plan.topology.device_memory_bytes > 0
          ? fmt::format(
                "does not fit: snapshots{} of a node's ranks need {:.1f} GiB and the node has {:.1f} GiB\n",
                plan.stages[plan.worst_stage].memory.host_bytes() > 0 ? " and offloaded state" : "",
                gib(plan.fit.node_bytes), gib(plan.topology.node_memory_bytes))
          : fmt::format("does not fit: stage {} needs {:.1f} GiB and a device has {:.1f} GiB\n",
                        plan.worst_stage, gib(plan.peak_bytes), gib(plan.device_bytes));
  text += padding_text(plan.job);
  return plan.fits ? text : text + near_text(plan.job, plan.topology, plan.near);
}

}  // namespace

std::string plan_summary(const Plan& plan) {
  const std::string head = head_text(plan);
  if (!plan.fits) return head;
  if (!plan.timed)
    return head + "time of a step: not predicted: " + plan.topology.name + " has no operator rates\n";
  const double step = plan.time.step_seconds;
  const RampTotals ramp = ramp_totals(plan);
  return head + fmt::format("time of a step: {}, {:.0f} tokens/s; {} steps: {}\n", duration(step),
                            plan.tokens_per_second_per_device * devices_of(plan), plan.job.steps,
                            duration(ramp.seconds + (step + plan.verify_seconds) *
                                                        static_cast<double>(plan.job.steps - ramp.steps)));
}

std::string graphs_text(const GraphIssue& graphs) {
  if (!graphs.used) return "";
  return fmt::format(
      "\nCUDA graphs: {} launches per step in place of {}: the host takes {} for them, not {}, of {} of "
      "operators; the graphs' own memory is the driver's, and no part of the plan\n",
      graphs.launches, graphs.calls, duration(graphs.graph_issue_seconds), duration(graphs.issue_seconds),
      duration(graphs.device_seconds));
}

std::string plan_text(const Plan& plan, double tokens) {
  return head_text(plan) + memory_text(plan) + traffic_text(plan) + attention_text(plan.attention) +
         graphs_text(plan.graphs) + time_text(plan, tokens) + checkpoint_text(plan);
}

std::string plan_json(const Plan& plan, double tokens) {
  Json out = {
      {"name", plan.job.name},       {"cluster", plan.topology.name}, {"device", plan.topology.device.name},
      {"devices", devices_of(plan)}, {"layout", plan.layout},         {"fits", plan.fits},
      {"memory", memory_json(plan)}};
  if (plan.job.padding_sequences() > 0) out["padding_sequences"] = plan.job.padding_sequences();
  if (plan.staging_bytes > 0) out["host_staging_bytes"] = plan.staging_bytes;
  Json& near = out["near"] = Json::array();
  for (const NearLayout& n : plan.near) {
    near.push_back({{"change", n.change}, {"fits", n.fits}, {"peak_bytes", n.peak_bytes}});
    if (n.step_seconds > 0) near.back()["step_seconds"] = n.step_seconds;
  }
  Json& axes = out["communication"] = Json::object();
  for (const TrafficPlan& t : plan.communication) {
    axes[t.group] = {{"ranks", t.size}, {"link", t.link}, {"calls", t.calls}, {"bytes", t.bytes}};
    if (plan.timed) axes[t.group]["seconds"] = t.seconds;
  }
  if (const AttentionPlan& a = plan.attention; a.own_calls > 0) {
    out["own_attention"] = {{"calls", a.own_calls}, {"plain_calls", a.plain_calls}};
    if (a.own_seconds > 0) out["own_attention"]["seconds"] = a.own_seconds;
    if (a.limited_calls > 0) out["own_attention"]["limited_calls"] = a.limited_calls;
    if (a.limited_seconds > 0) {
      out["own_attention"]["limited_seconds"] = a.limited_seconds;
      out["own_attention"]["fast_seconds"] = a.fast_seconds;
    }
  }
  if (const GraphIssue& g = plan.graphs; g.used)
    out["cuda_graphs"] = {{"calls", g.calls},
                          {"launches", g.launches},
                          {"issue_seconds", g.issue_seconds},
                          {"graph_issue_seconds", g.graph_issue_seconds},
                          {"operator_seconds", g.device_seconds}};
  out["flops_convention"] = kFlopsConvention;
  out["model_flops_per_token"] = job::flops_per_token(plan.job.model);
  if (plan.timed) {
    out["step_seconds"] = plan.time.step_seconds;
    for (const RampPlan& stage : plan.ramp)
      out["ramp"].push_back(
          {{"global", stage.span.global}, {"steps", stage.span.steps}, {"step_seconds", stage.step_seconds}});
    if (plan.verify_seconds > 0) out["verify_seconds"] = plan.verify_seconds;
    if (plan.canary_seconds > 0) out["canary_seconds"] = plan.canary_seconds;
    out["tokens_per_second_per_device"] = plan.tokens_per_second_per_device;
    out["tflops_per_device"] = plan.model_tflops_per_device;
    out["hardware_tflops_per_device"] = plan.hardware_tflops_per_device;
    out["mfu"] = plan.mfu;
    out["bubble"] = plan.time.bubble;
    for (const base::LedgerPartInfo& part : base::kLedgerParts)
      out["time"][part.name] = plan.time.mean[part.part];
    const double seconds = budget_seconds(plan, tokens);
    if (tokens > 0)
      out["budget"] = {
          {"tokens", tokens}, {"days", seconds / kDay}, {"device_hours", seconds / 3600 * devices_of(plan)}};
  }
  Json& checkpoint = out["checkpoint"] = {{"bytes", plan.checkpoint.bytes}};
  if (plan.checkpoint.snapshot_seconds > 0) {
    checkpoint["snapshot_seconds"] = plan.checkpoint.snapshot_seconds;
    checkpoint["stall_seconds"] = plan.checkpoint.stall_seconds;
  }
  if (plan.checkpoint.failure_seconds > 0)
    checkpoint["mean_time_between_failures_seconds"] = plan.checkpoint.failure_seconds;
  if (plan.checkpoint.interval_seconds > 0) checkpoint["interval_seconds"] = plan.checkpoint.interval_seconds;
  return io::to_text(out, 2) + "\n";
}

}  // namespace trainerd::core::plan
