#include <utility>

#include "core/run/nodes/membership.h"
#include "kernels/base/clock.h"

// Part of the membership (membership.h): the injected fault that drops the link.

namespace trainerd::core::run {

void Membership::drop_link(double seconds) {
  link_back_at_ = base::monotonic_seconds() + seconds;
  if (beats_) beats_->drop_link(seconds);
}

bool Membership::link_is_dropped() const {
  return link_back_at_ > 0 && base::monotonic_seconds() < link_back_at_;
}

/// Sends the held messages to the nodes that are still connected.
void Membership::restore_link() {
  link_back_at_ = 0;
  const std::vector<std::string> texts = std::exchange(held_back_, {});
  for (const std::string& text : texts) send(text);
}

}  // namespace trainerd::core::run
