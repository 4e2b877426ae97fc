#include "core/run/worker/worker_failure.h"

#include <new>
#include <string>

#include "kernels/base/error.h"

namespace trainerd::core::run {

Failed failure_of(const std::exception& error, bool in_steps) {
  if (const auto* typed = dynamic_cast<const base::Error*>(&error)) {
    const bool machine = typed->kind() == base::ErrorKind::comm || typed->kind() == base::ErrorKind::device;
    return {.kind = typed->kind(), .message = typed->what(), .retry = in_steps && machine};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return {
        .kind = base::ErrorKind::capacity,
        .message =
            "a rank does not fit: its worker ran out of host memory; free some, or make batch.micro smaller"};
  return {.kind = base::ErrorKind::device, .message = std::string("the worker failed: ") + error.what()};
}

void send_failure(Channel& agent, const Failed& failure) {
  try {
    agent.send(encode(WorkerMessage{failure}));
  } catch (const base::Error&) {
    // The agent has ended.
  }
}

}  // namespace trainerd::core::run
