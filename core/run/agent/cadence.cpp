#include "core/run/agent/cadence.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/plan/cost/checkpoint_interval.h"
#include "io/text/text.h"

namespace trainerd::core::run {
namespace {

constexpr std::size_t kLatestSaves = 9;
constexpr double kDay = 24 * 3600;
// A tiny model's save takes less than the clock's resolution.
constexpr double kMinStallSeconds = 1e-3;

}  // namespace

void Cadence::add_save(double stall_seconds, double write_seconds) {
  saves_.push_back({stall_seconds, write_seconds});
  if (saves_.size() > kLatestSaves) saves_.pop_front();
}

io::CadenceRecord Cadence::optimum() const {
  using Source = io::CadenceRecord::Source;
  io::CadenceRecord record;
  if (options_.given_mtbf_seconds > 0) {
    record.source = Source::given;
    record.mtbf_seconds = options_.given_mtbf_seconds;
  } else if (options_.cluster_mtbf_seconds > 0) {
    record.source = Source::cluster;
    record.mtbf_seconds = options_.cluster_mtbf_seconds;
  } else {
    record.source = Source::history;
    record.mtbf_seconds = (kDay + options_.trained_seconds) / static_cast<double>(1 + options_.interruptions);
  }
  record.stall_seconds = record.write_seconds = options_.first_save_seconds;
  if (!saves_.empty()) {
    std::vector<double> stalls, writes;
    for (const Save& save : saves_) {
      stalls.push_back(save.stall_seconds);
      writes.push_back(save.write_seconds);
    }
    record.stall_seconds = io::median(std::move(stalls));
    record.write_seconds = io::median(std::move(writes));
  }
  record.interval_seconds = plan::checkpoint_interval_seconds(
      std::max(record.stall_seconds, kMinStallSeconds), record.write_seconds, record.mtbf_seconds);
  return record;
}

}  // namespace trainerd::core::run
