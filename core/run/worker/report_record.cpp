#include "core/run/worker/report_record.h"

#include "io/text/text.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

void put_report(const train::StepReport& report, const train::Trainer& trainer, const job::JobSpec& job,
                io::StepRecord& record) {
  // With loss.dpo the report counts pairs.
  if (!job.loss.dpo.on())
    record.counted_tokens = train::counted_tokens(report, record.samples * job.model.seq_len);
  record.loss = report.loss;
  record.z_loss = report.z_loss;
  record.expert_balance = report.expert_balance;
  record.expert_load = report.expert_load;
  record.rewards = report.rewards;
  record.grad_norm = report.grad_norm;
  // Norms of an overflow are not finite and tell nothing.
  for (std::size_t i = 0; i < report.group_norms.size() && !report.overflow; ++i)
    record.grad_norms.emplace_back(trainer.norm_groups()[i], report.group_norms[i]);
  record.learning_rate = report.learning_rate;
  record.skipped = report.passed_over || report.overflow;
  record.loss_scale = report.loss_scale;
  record.overflow = report.overflow;
  record.time = report.time;
}

void require_updated(const train::StepReport& report, std::int64_t step, std::int64_t rank,
                     const job::JobSpec& job, const std::function<void()>& await_agent) {
  const std::string which = "step " + std::to_string(step);
  while (report.outside_rank && *report.outside_rank != rank) await_agent();
  if (report.outside_rank) throw train::outside_error(which, job.model.vocab);
  while (report.crowded_rank && *report.crowded_rank != rank) await_agent();
  if (report.crowded_rank) throw train::crowded_error(which, job.parallel);
  while (report.skipped && report.nonfinite_rank != rank) await_agent();
  if (report.skipped)
    throw base::diverged_error(
        which + ": " + (report.nonfinite == "loss" ? "the loss" : "the gradient of " + report.nonfinite) +
        " is not finite; the step updated nothing" +
        (report.loss_scale && report.nonfinite != "loss"
             ? ", and the loss scale is already precision.min_loss_scale, " +
                   io::short_number(*report.loss_scale)
             : ""));
}

void put_counters(const kernels::BackendCounters& counters, const job::JobSpec& job, io::StepRecord& record,
                  std::int64_t missed_before) {
  record.widened_gemms = counters.widened_gemms;
  record.reference_gemms = counters.reference_gemms;
  record.own_attention = counters.own_attention;
  record.missed_gemm_choices = counters.missed_gemm_choices - missed_before;
  record.attention_fallbacks = counters.attention_fallbacks;
  if (job.attention.require == job::AttentionRequire::library && counters.own_attention > 0)
    throw base::spec_error("step " + std::to_string(record.step) + ": attention.require is library, and " +
                           std::to_string(counters.own_attention) +
                           " calls of attention ran by our own kernels: set attention.require: any, or see "
                           "which shapes `trainerd plan` gives to the library");
}

std::string attention_warning(const io::StepRecord& record, const std::string& library) {
  if (record.attention_fallbacks == 0) return "";
  return std::to_string(record.attention_fallbacks) +
         " calls of attention ran by our own kernels, which are slower, though they were planned for " +
         library + ": see trainerd_own_attention_total; with attention.require: library the run ends instead";
}

std::optional<io::NoticeRecord> graphs_notice(const kernels::GraphUse& use, std::int64_t rank,
                                              std::int64_t step) {
  using State = kernels::GraphUse::State;
  // Graphs are captured in the second step after the decision, and a step may be under way at the decision.
  constexpr std::int64_t kSettledSteps = 3;
  const bool used = use.state == State::used && use.steps_since >= kSettledSteps;
  if ((!used && use.state != State::not_worth) || (rank != 0 && !use.failed)) return std::nullopt;
  const auto seconds = [](double s) {
    return s < 1 ? io::short_number(1e3 * s) + " ms" : io::short_number(s) + " s";
  };
  const std::string times = "a step's calls take the host " + seconds(use.issue_seconds) +
                            " to put on the device, and the step takes the device " +
                            seconds(use.device_seconds);
  io::NoticeRecord notice{.kind = use.failed ? io::NoticeKind::warning : io::NoticeKind::graphs,
                          .step = step,
                          .message = "rank " + std::to_string(rank) + ": ",
                          .details = {}};
  if (!used) {
    notice.message += "no CUDA graphs: " + times;
    return notice;
  }
  notice.message += "CUDA graphs: " + std::to_string(use.graphs) + " of " + std::to_string(use.graph_calls) +
                    " calls, of " + std::to_string(use.lists) + " lists that repeat; " + times;
  for (const std::string& why : use.without) notice.details.push_back("no graph: " + why);
  return notice;
}

io::NoticeRecord raised_peak_notice(std::int64_t step, double before, double now) {
  return {
      .kind = io::NoticeKind::warning,
      .step = step,
      .message = "the GEMM peak that MFU is of was too low, as other programs ran while it was measured: " +
                 io::with_unit(now, "FLOP/s") + " a rank, not " + io::with_unit(before, "FLOP/s"),
      .details = {}};
}

}  // namespace trainerd::core::run
