#include "core/run/supervise/still_clock.h"

#include <utility>

namespace trainerd::core::run {
namespace {

// The kernel counts CPU time in ticks of 10 ms. A rank that polls for others uses less between two looks.
constexpr double kTick = 0.009;

}  // namespace

void StillClock::reset(std::uint64_t beats) {
  beats_ = beats;
  before_.reset();
  time_ = {};
}

void StillClock::add(double seconds, bool patient, const ProcessLook& process) {
  const std::optional<ProcessLook> before = std::exchange(before_, process);
  if (process.traced) {
    time_ = {};
    return;
  }
  if (seconds <= 0) return;
  if (process.state == 'T') time_.stopped += seconds;
  else if (process.state == 'D') time_.disk += seconds;
  else if (process.runnable) time_.running += seconds;
  if (!before) return;  // nothing to compare with
  const double cpu = process.cpu_seconds - before->cpu_seconds;
  const bool computed = cpu >= kTick;
  if (computed) time_.computing += cpu;
  if (computed && patient) time_.asleep = 0;
  if (process.state == 'T' || process.state == 'D' || process.runnable) return;
  (computed ? time_.running : time_.asleep) += seconds;
}

}  // namespace trainerd::core::run
