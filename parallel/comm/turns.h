#pragma once

#include <memory>

#include "parallel/comm/communicator.h"

// Messages whose result is the next operator's input. The rank can compute only another pass on the stream
// meanwhile (kernels::Stream::give_way).

namespace trainerd::parallel {

/// In the background if another pass may hide the message.
inline CommOptions in_turns(const kernels::Stream& s, const char* label) {
  return {.label = label, .progress = s.shared() ? Progress::background : Progress::caller};
}

/// Lets another pass continue, then waits for `work`. All ranks of every group must call it for the same
/// waits in the same order; otherwise their passes interleave differently. So do not call it for a wait that
/// only some ranks of a group have.
inline void wait_in_turns(Work& work, kernels::Stream& s) {
  s.give_way();
  work.wait(s);
}

}  // namespace trainerd::parallel
