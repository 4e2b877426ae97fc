#include "core/run/agent/rank_supervisor.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/run/agent/attempt.h"
#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/train/rank_groups.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/clock.h"

namespace trainerd::core::run {
namespace {

// Interval between a node's messages with the step times of its ranks.
constexpr double kTimesSeconds = 5;

// Between two reports of what the ranks do, in a job of few nodes; and of how many ranks the leader gets
// them.
constexpr double kShowSeconds = 1, kFewNodes = 64;
constexpr std::int64_t kShownRanks = 1024;

HangLimits limits_of(const job::JobSpec& job, const parallel::Topology& topology) {
  const bool cpu = topology.device.kind == kernels::DeviceKind::cpu;
  return {.factor = job.supervise.hang_factor,
          .minimum_seconds = job.supervise.hang_minimum_seconds,
          .threads = cpu ? topology.device.threads : 1};
}

FailureCause cause_of(const HangVerdict& verdict) {
  return {.what = fmt::format("rank{} {} by a hang ({})", verdict.ranks.size() == 1 ? "" : "s",
                              fmt::join(verdict.ranks, ", "), verdict.kind),
          .own = verdict.own};
}

/// The ranks of each pipeline stage, which do equal work.
std::vector<std::vector<std::int64_t>> stages_of(const parallel::ProcessGrid& grid) {
  std::vector<std::vector<std::int64_t>> stages(static_cast<std::size_t>(grid.size(parallel::Axis::pp)));
  for (std::int64_t rank = 0; rank < grid.ranks(); ++rank)
    stages[static_cast<std::size_t>(grid.coordinate(rank)[static_cast<std::size_t>(parallel::Axis::pp)])]
        .push_back(rank);
  return stages;
}

}  // namespace

RankSupervisor::RankSupervisor(Run& run) : run_(run), limits_(limits_of(run.job(), run.topology())) {}

void RankSupervisor::on_ready(const parallel::Layout& layout, double peak_flops) {
  if (peak_flops <= 0) return;
  const job::JobSpec& job = run_.job();
  limits_.peak_step_seconds = static_cast<double>(job.tokens_per_step()) * job::flops_per_token(job.model) /
                              (static_cast<double>(layout.grid.ranks()) * peak_flops);
}

void RankSupervisor::restart(const Attempt& before) {
  if (before.ranks() != nullptr) usual_ = before.ranks()->usual();
  // The next attempt may begin with a larger batch.
  const double growth = std::max(1.0, run_.job().growth(run_.step() + 1));
  for (UsualTimes& usual : usual_) {
    usual.step_seconds *= growth;
    for (double& seconds : usual.longest_seconds) seconds *= growth;
  }
  inquiry_.reset();
  times_.clear();
  if (stragglers_) stragglers_->restart();
}

// ---- hangs

void RankSupervisor::on_look(Attempt& attempt) {
  show(attempt);
  if (attempt.failure() || !attempt.workers_left()) return;
  const std::vector<RankSight> pages = attempt.ranks()->pages();
  if (std::ranges::none_of(pages, [this](const RankSight& page) { return limits_.suspicious(page); })) return;
  if (run_.membership().leads()) return inquire(attempt);
  run_.membership().send(HangSuspected{attempt.number()});
}

void RankSupervisor::on_message(Attempt& attempt, const HangSuspected&) {
  if (!attempt.failure()) inquire(attempt);
}

void RankSupervisor::on_message(Attempt& attempt, const ShowRanks& m) {
  if (attempt.ranks() == nullptr) return;
  for (RankSight& sight : attempt.ranks()->sights())
    run_.membership().send(RankSeen{attempt.number(), m.number, std::move(sight)});
}

void RankSupervisor::on_message(Attempt& attempt, const RankSeen& m) {
  if (attempt.failure() || !inquiry_ || !inquiry_->add(m.number, m.sight, base::monotonic_seconds())) return;
  if (inquiry_->complete()) decide(attempt, inquiry_->sights());
}

void RankSupervisor::inquire(Attempt& attempt) {
  if (attempt.ranks() == nullptr) return;
  if (run_.membership().alone()) return decide(attempt, attempt.ranks()->sights());
  if (!inquiry_) inquiry_.emplace(attempt.plan().layout.grid.ranks());
  const double now = base::monotonic_seconds();
  const bool unanswered = inquiry_->recent(now) && !inquiry_->complete();
  const std::vector<RankSight> before = unanswered ? inquiry_->sights() : std::vector<RankSight>{};
  const std::optional<std::int64_t> number = inquiry_->ask(now);
  if (!number) return;
  // Some node has not answered in time.
  if (!before.empty()) decide(attempt, before);
  if (attempt.failure()) return;
  run_.membership().send(ShowRanks{attempt.number(), *number});
  for (RankSight& sight : attempt.ranks()->sights()) inquiry_->add(*number, std::move(sight), now);
  if (inquiry_->complete()) decide(attempt, inquiry_->sights());  // all ranks are on this node
}

void RankSupervisor::decide(Attempt& attempt, const std::vector<RankSight>& sights) {
  const auto verdict = judge(sights, attempt.plan().layout, train::group_needs(run_.job().model), limits_);
  if (!verdict) return;
  if (!verdict->restart) {
    const std::string what =
        fmt::format("{} {} {}", verdict->kind, fmt::join(verdict->ranks, ","), run_.step());
    if (std::exchange(reported_, what) == what) return;
  }
  report(attempt, *verdict, sights);
}

void RankSupervisor::report(Attempt& attempt, const HangVerdict& verdict,
                            const std::vector<RankSight>& sights) {
  std::vector<std::string> details = verdict.details;
  details.push_back(fmt::format("its deadline was {:.1f} s", verdict.deadline_seconds));
  if (std::string kept = keep(verdict, sights); !kept.empty()) details.push_back(std::move(kept));
  run_.notify(io::NoticeKind::hang, verdict.message, std::move(details));
  run_.sinks().each(&io::MetricsSink::on_hang, io::HangRecord{verdict.kind});
  if (verdict.restart) attempt.fail({base::ErrorKind::comm, verdict.message, 1, true, cause_of(verdict)});
}

/// Writes all that is known of the ranks to a file. Returns a text that names it; empty on failure.
std::string RankSupervisor::keep(const HangVerdict& verdict, const std::vector<RankSight>& sights) const {
  nlohmann::json page{{"step", run_.step()},
                      {"wall_time", base::wall_seconds()},
                      {"kind", verdict.kind},
                      {"restart", verdict.restart},
                      {"deadline_seconds", verdict.deadline_seconds},
                      {"held_up_by", verdict.ranks},
                      {"message", verdict.message},
                      {"details", verdict.details},
                      {"hang_factor", limits_.factor},
                      {"hang_minimum_seconds", limits_.minimum_seconds}};
  page["ranks"] = nlohmann::json::array();
  for (const RankSight& sight : sights) page["ranks"].push_back(to_json(sight));
  const std::string text = page.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::string folder = run_.output().hangs();
  std::string path;
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  for (int again = 1; again == 1 || std::filesystem::exists(path); ++again)
    path =
        fmt::format("{}/hang-{:08}{}.json", folder, run_.step(), again == 1 ? "" : fmt::format("-{}", again));
  if (const int failed = base::write_file_atomically(path, std::as_bytes(std::span(text))); failed != 0) {
    log::warn("{} cannot be written: {}", path, base::errno_text(failed));
    return "";
  }
  return "what all ranks did is in " + path;
}

// ---- what the ranks do

void RankSupervisor::show(Attempt& attempt) {
  const bool leads = run_.membership().leads();
  const double now = base::monotonic_seconds();
  const double every =
      kShowSeconds * std::max(1.0, static_cast<double>(run_.membership().nodes()) / kFewNodes);
  if (now - shown_at_ < every || attempt.plan().here.first >= kShownRanks || (leads && run_.sinks().none()))
    return;
  shown_at_ = now;
  RanksDoing all{attempt.number(), {}};
  for (const RankSight& sight : attempt.ranks()->sights())
    all.ranks.push_back({.rank = sight.rank,
                         .doing = doing(sight),
                         .last = latest_operation(sight),
                         .seconds = sight.beat_seconds});
  if (leads) on_message(attempt, all);
  else run_.membership().send(all);
}

void RankSupervisor::on_message(Attempt&, const RanksDoing& m) {
  for (const io::RankDoingRecord& record : m.ranks)
    run_.sinks().each(&io::MetricsSink::on_rank_doing, record);
}

// ---- stragglers

void RankSupervisor::on_status(Attempt& attempt, const io::RankStatusRecord& record) {
  const RankTime time{record.rank, record.steps, record.time[base::LedgerPart::compute]};
  if (run_.membership().leads()) return add(attempt, time);
  times_[record.rank] = time;
  const double now = base::monotonic_seconds();
  if (now - times_sent_at_ < kTimesSeconds) return;
  times_sent_at_ = now;
  RankTimes times{attempt.number(), {}};
  for (const auto& [rank, known] : std::exchange(times_, {})) times.ranks.push_back(known);
  run_.membership().send(times);
}

void RankSupervisor::on_message(Attempt& attempt, const RankTimes& m) {
  for (const RankTime& time : m.ranks) add(attempt, time);
}

void RankSupervisor::add(Attempt& attempt, const RankTime& time) {
  const parallel::Layout& layout = attempt.plan().layout;
  if (layout.grid.ranks() == 1) return;
  if (!stragglers_) stragglers_ = std::make_unique<StragglerWatch>(stages_of(layout.grid));
  for (const StragglerWatch::Change& change : stragglers_->add(time, base::monotonic_seconds())) {
    const std::int64_t node = change.rank / run_.topology().devices_per_node;
    const std::string who = place_of(change.rank, node, !run_.membership().alone(), layout);
    run_.notify(io::NoticeKind::straggler, StragglerWatch::text_of(change, who));
    run_.sinks().each(&io::MetricsSink::on_straggler,
                      io::StragglerRecord{change.rank, node, change.slow ? change.excess : 0});
  }
}

}  // namespace trainerd::core::run
