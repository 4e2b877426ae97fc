#pragma once

#include <functional>

#include "kernels/backend/backend.h"
#include "kernels/base/turns.h"

namespace trainerd::core::train {

/// Runs two walks in turns on one stream: each goes on while the other waits for messages
/// (`Stream::give_way`). All their calls are made in one order, the same in every step and on every rank with
/// the same actions.
class WalkTurns final : private kernels::StreamTurns {
 public:
  struct Walk {
    std::function<void()> run;
    std::function<void()> goes_on;  ///< called when the walk begins, and each time that it goes on
    kernels::Arena* scratch = nullptr;
  };
  void run(kernels::Stream& stream, const Walk& first, const Walk& second);

 private:
  void give_way() override;
  void go_on(const Walk& walk);
  std::function<void()> whole(const Walk& walk);

  base::Turns turns_;
  kernels::Stream* stream_ = nullptr;
  const Walk* current_ = nullptr;
};

}  // namespace trainerd::core::train
