#pragma once

#include <functional>

#include "kernels/backend/backend.h"
#include "kernels/base/turns.h"

namespace trainerd::core::train {

/// Runs two walks alternately on one stream: when one has to wait for a message (`Stream::give_way`), the
/// other continues. The order of all calls is the same in every step and on every rank with the same actions.
class WalkTurns final : private kernels::StreamTurns {
 public:
  struct Walk {
    std::function<void()> run;
    std::function<void()> goes_on;  ///< called when the walk starts, and each time it continues
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
