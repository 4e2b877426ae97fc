#include <algorithm>
#include <cmath>
#include <string>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "io/text/text.h"

// Part of the run (run.h): the save interval with checkpoint.every: auto. The leader computes it and sends it
// to its rank 0, whose clock decides when to save.

namespace trainerd::core::run {
namespace {

// Smaller relative changes are not logged.
constexpr double kReportedChange = 0.2;

const char* source_text(io::CadenceRecord::Source source) {
  switch (source) {
    case io::CadenceRecord::Source::given: return "checkpoint.mtbf";
    case io::CadenceRecord::Source::cluster: return "the cluster's failures";
    case io::CadenceRecord::Source::history: return "learned from the run's history";
  }
  return "";
}

}  // namespace

void Run::begin_cadence() {
  if (!membership_.leads() || !job_.checkpoint.every.automatic) return;
  const double per_day = topology_.failures_per_node_day * static_cast<double>(membership_.nodes());
  constexpr double kDay = 24 * 3600;
  cadence_.emplace(Cadence::Options{.given_mtbf_seconds = job_.checkpoint.mtbf_seconds,
                                    .cluster_mtbf_seconds = per_day > 0 ? kDay / per_day : 0,
                                    .first_save_seconds = guessed_save_seconds(),
                                    .trained_seconds = earlier_run_.useful_seconds,
                                    .interruptions = earlier_run_.interruptions});
}

void Run::send_cadence() {
  if (!cadence_) return;
  const io::CadenceRecord record = cadence_->optimum();
  attempt_->send_all(SaveEvery{record.interval_seconds});
  sinks_.each(&io::MetricsSink::on_cadence, record);
  if (std::abs(record.interval_seconds - sent_interval_seconds_) <= kReportedChange * sent_interval_seconds_)
    return;
  sent_interval_seconds_ = record.interval_seconds;
  log::info(
      "checkpoint.every: auto: every {} from now on; mean time between failures {} ({}), a save stops "
      "training for {} and takes {}",
      io::short_duration(record.interval_seconds), io::short_duration(record.mtbf_seconds),
      source_text(record.source), io::short_duration(record.stall_seconds),
      io::short_duration(record.write_seconds));
}

}  // namespace trainerd::core::run
