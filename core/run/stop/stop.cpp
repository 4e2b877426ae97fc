#include "core/run/stop/stop.h"

#include <cstring>

namespace trainerd::core::run {
namespace {

// A second SIGINT within this time is the same request, because terminals and wrappers repeat it.
constexpr double kInterruptSeconds = 1.0;

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

StopSignals::Meaning StopSignals::on_signal(int signal, double now) {
  if (signal == SIGQUIT) return Meaning::stop_at_once;
  if (signal == SIGINT) {
    if (first_interrupt_ && now - *first_interrupt_ >= kInterruptSeconds) return Meaning::stop_at_once;
    if (!first_interrupt_) first_interrupt_ = now;
  }
  if (asked_) return Meaning::same_request;
  asked_ = true;
  return Meaning::stop;
}

StopRequest stop_request(int signal) {
  if (signal == SIGALRM) return {.reason = "the time limit"};  // see limit_alarm.h
  return {signal_name(signal), signal == SIGINT || signal == SIGQUIT ? signal : SIGTERM};
}

}  // namespace trainerd::core::run
