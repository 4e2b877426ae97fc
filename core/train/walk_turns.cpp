#include "core/train/walk_turns.h"

namespace trainerd::core::train {

void WalkTurns::run(kernels::Stream& stream, const Walk& first, const Walk& second) {
  /// Ends the sharing also when a walk fails.
  struct Shared {
    kernels::Stream& stream;
    kernels::Arena* scratch;
    ~Shared() {
      stream.share_by(nullptr);
      stream.exchange_scratch(scratch);
    }
  };
  const Shared shared{stream, &stream.scratch()};
  stream_ = &stream, current_ = nullptr;
  stream.share_by(this);
  turns_.run(whole(first), whole(second));
}

std::function<void()> WalkTurns::whole(const Walk& walk) {
  return [this, &walk] {
    go_on(walk);
    walk.run();
    stream_->flush();  // calls that are held back take their scratch when they are made
  };
}

void WalkTurns::give_way() {
  const Walk& walk = *current_;
  stream_->flush();
  turns_.give_way();
  go_on(walk);
}

void WalkTurns::go_on(const Walk& walk) {
  if (current_ == &walk) return;
  current_ = &walk;
  stream_->exchange_scratch(walk.scratch);
  walk.goes_on();
}

}  // namespace trainerd::core::train
