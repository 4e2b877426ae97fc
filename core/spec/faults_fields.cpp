#include "core/spec/faults_fields.h"

#include <algorithm>
#include <string>

#include "parallel/layout/grid.h"

namespace trainerd::core::spec {
namespace {

using job::FaultKind;

constexpr double kMaxFaultStep = 1e12, kMaxFactor = 1000, kMaxElement = 1e15, kMaxBit = 31, kMaxTimes = 1000,
                 kMaxFaultSeconds = 1e6, kMaxXid = 1000;

std::vector<Field> fields_of_fault(job::Fault& f) {
  FieldTable t;
  t.choice(
       "kind", f.kind,
       {{"kill", FaultKind::kill},
        {"crash", FaultKind::crash},
        {"kill_agent", FaultKind::kill_agent},
        {"stop", FaultKind::stop},
        {"hang", FaultKind::hang},
        {"slow", FaultKind::slow},
        {"flip_parameter", FaultKind::flip_parameter},
        {"flip_gradient", FaultKind::flip_gradient},
        {"flip_checkpoint", FaultKind::flip_checkpoint},
        {"flip_message", FaultKind::flip_message},
        {"reset_link", FaultKind::reset_link},
        {"drop_link", FaultKind::drop_link},
        {"fill_disk", FaultKind::fill_disk},
        {"fail_store", FaultKind::fail_store},
        {"device_error", FaultKind::device_error}},
       "kill: the rank's worker gets SIGKILL; crash: SIGSEGV, as by a bug; kill_agent: the agent of its node "
       "gets SIGKILL; stop: the worker gets SIGSTOP; hang: it computes for ever; slow: its computing takes "
       "`factor` times as long; "
       "flip_parameter: a bit of its master weights changes before the step; flip_gradient: a bit of its "
       "reduced gradients before the update; flip_checkpoint: a bit of its file in the first checkpoint "
       "that is written from the step on; flip_message: a bit of what it sends first in the step; "
       "reset_link: in the middle of the step its connections to the other ranks close; "
       "drop_link: for `seconds` nothing passes between the agent of its node and other agents; fill_disk: "
       "that agent's writes of checkpoints fail as on a full disk; fail_store: all fails that it does in the "
       "durable tier; device_error: that agent acts as if the driver had reported the XID `xid` of the "
       "rank's "
       "GPU, on a CPU too")
      .needed();
  t.add("step", &f.step, "when").between(1, kMaxFaultStep).needed();
  t.add("rank", &f.rank, "where").between(0, static_cast<double>(parallel::kMaxRanks) - 1);
  t.add("steps", &f.steps, "of slow: for how many steps").between(1, kMaxFaultStep);
  t.add("factor", &f.factor, "of slow: how many times as long; measured by the step before")
      .above(1, kMaxFactor);
  t.add("seconds", &f.seconds, "of drop_link, fill_disk and fail_store: for how long")
      .above(0, kMaxFaultSeconds);
  t.add("xid", &f.xid, "of device_error: NVIDIA's number of the error").between(1, kMaxXid);
  t.add("tensor", &f.tensor, "of flip_parameter and flip_gradient: its name").or_else("one that is drawn");
  t.add("element", &f.element, "of the same: which of those that the rank updates of the tensor")
      .between(0, kMaxElement)
      .or_else("one that is drawn");
  t.add("bit", &f.bit, "of the same and of flip_message: from the lowest, 0")
      .between(0, kMaxBit)
      .or_else("the highest of the mantissa");
  t.add("times", &f.times,
        "of flip_gradient: in how many computations of the step, where `supervise` computes it again; an "
        "element that is drawn is another one each time")
      .between(1, kMaxTimes);
  return t.take();
}

std::string kinds_text() {
  std::string text;
  for (const std::string_view word : job::kFaultWords) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

}  // namespace

std::string unfit(FaultKind kind, const job::JobSpec& job) {
  const std::int64_t ranks = job.parallel.ranks();
  if (kind == FaultKind::flip_message && ranks == 1) return "a job of one rank sends no messages";
  if (kind == FaultKind::reset_link && ranks == 1) return "a job of one rank has no connections to close";
  if (kind == FaultKind::drop_link && job.cluster.nodes == 1) return "a job of one node has no link to drop";
  if (kind == FaultKind::fail_store && !job.checkpoint.durable.on())
    return "the job has no durable tier (checkpoint.durable)";
  return "";
}

void add_faults(FieldTable& t, job::FaultsOptions& faults) {
  t.add("faults.allow", &faults.allow,
        "the run may break itself as the keys below say: for rehearsals. A job with faults and without this "
        "is refused");
  t.add("faults.inject", MapList(faults.inject, fields_of_fault),
        "failures that the run makes on purpose, each once: not again when the step is done again, in the "
        "same run or after a resume")
      .or_else("none");
  t.add("faults.random.rate", &faults.random.rate,
        "share of the steps that get a fault; its rank and kind are drawn; 0: none")
      .between(0, 1);
  const std::string none = "faults.random.rate is 0";
  t.add("faults.random.seed", &faults.random.seed, "by which they are drawn: the same give the same faults")
      .idle_if(faults.random.rate == 0, none);
  t.add("faults.random.kinds", &faults.random.kinds, "of which, as in `inject`")
      .idle_if(faults.random.rate == 0, none);
}

std::vector<KeyProblem> fault_problems(const job::JobSpec& job, const Problems& bad) {
  std::vector<KeyProblem> problems;
  const job::FaultsOptions& faults = job.faults;
  const auto refuse = [&](const std::string& path, const std::string& what) {
    if (!bad.bad(path)) problems.push_back({path, what});
  };
  if (bad.bad("faults.inject") || bad.bad("faults.random.rate")) return problems;
  if (faults.any() && !faults.allow)
    refuse("faults.allow", "is false, and faults are given: set it to true to let the run break itself");
  for (const std::string& kind : faults.random.kinds)
    if (const auto known = job::fault_kind_of(kind); !known)
      refuse("faults.random.kinds", "'" + kind + "' is no kind: give of " + kinds_text());
    else if (const std::string why = unfit(*known, job); faults.random.rate > 0 && !why.empty())
      refuse("faults.random.kinds", kind + ": " + why);
  if (faults.random.kinds.empty()) refuse("faults.random.kinds", "is empty: give of " + kinds_text());
  const std::int64_t ranks = job.parallel.ranks();
  const job::Fault plain;
  for (std::size_t i = 0; i < faults.inject.size(); ++i) {
    const job::Fault& f = faults.inject[i];
    const std::string at = "faults.inject[" + std::to_string(i) + "].";
    const std::string kind = "of kind " + job::word_of(f.kind);
    if (f.step > job.steps && !bad.bad("steps"))
      refuse(at + "step", "step " + std::to_string(f.step) +
                              " is after the last one (nearest valid: " + std::to_string(job.steps) + ")");
    if (f.rank >= ranks && ranks > 0)
      refuse(at + "rank", "rank " + std::to_string(f.rank) + " is none of the job's " +
                              std::to_string(ranks) + " (nearest valid: " + std::to_string(ranks - 1) + ")");
    if (const std::string why = unfit(f.kind, job); !why.empty())
      refuse(at + "kind", job::word_of(f.kind) + ": " + why);
    const bool slow = f.kind == FaultKind::slow, flips = job::flips_tensor(f.kind);
    if (!job::lasts_seconds(f.kind) && f.seconds != plain.seconds)
      refuse(at + "seconds", "has no effect on a fault " + kind);
    if (f.kind != FaultKind::device_error && f.xid != plain.xid)
      refuse(at + "xid", "has no effect on a fault " + kind);
    if (!slow && f.steps != plain.steps) refuse(at + "steps", "has no effect on a fault " + kind);
    if (!slow && f.factor != plain.factor) refuse(at + "factor", "has no effect on a fault " + kind);
    if (!flips && f.tensor != plain.tensor) refuse(at + "tensor", "has no effect on a fault " + kind);
    if (!flips && f.element != plain.element) refuse(at + "element", "has no effect on a fault " + kind);
    if (!flips && f.kind != FaultKind::flip_message && f.bit != plain.bit)
      refuse(at + "bit", "has no effect on a fault " + kind);
    if (f.kind != FaultKind::flip_gradient && f.times != plain.times)
      refuse(at + "times", "has no effect on a fault " + kind);
  }
  return problems;
}

}  // namespace trainerd::core::spec
