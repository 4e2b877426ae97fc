#pragma once

#include <memory>

#include "parallel/comm/communicator.h"

// Messages whose result is needed next, so that a rank has nothing to compute meanwhile, except another pass
// on the stream (kernels::Stream::give_way).

namespace trainerd::parallel {

/// In the background if another pass may hide the message.
inline CommOptions in_turns(const kernels::Stream& s, const char* label) {
  return {.label = label, .progress = s.shared() ? Progress::background : Progress::caller};
}

/// Waits for it; another pass goes on first. All ranks of every group must come to the same waits in the same
/// order, else their passes interleave in different ways: a wait of some ranks of a group alone is no place
/// for it.
inline void wait_in_turns(Work& work, kernels::Stream& s) {
  s.give_way();
  work.wait(s);
}

}  // namespace trainerd::parallel
