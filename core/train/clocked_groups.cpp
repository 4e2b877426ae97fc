#include "core/train/clocked_groups.h"

namespace trainerd::core::train {

using parallel::CommCall;
using parallel::CommMoment;

RankGroups clocked(const RankGroups& groups, StepClock& clock, RankPage* const& page,
                   const ObserveSends& sends) {
  return RankGroups(groups, [&clock, &page, &sends](parallel::Group group, parallel::Communicator& inner) {
    if (inner.size() == 1 && !parallel::is_host_link(group))
      return parallel::make_observed(inner, [](kernels::Stream&, CommMoment, const CommCall&) {});
    return parallel::make_observed(
        inner, [&clock, &page, &sends, &charge = info(group)](kernels::Stream& stream, CommMoment moment,
                                                              const CommCall& call) {
          stream.flush();
          if (call.sent != nullptr && sends && !parallel::is_host_link(charge.group))
            sends(stream, charge, call);
          if (moment == CommMoment::done) page->resume();
          else page->wait(charge.group);
          // Other streams wait beside the compute stream.
          if (stream.name() != kComputeStream) return;
          switch (moment) {
            case CommMoment::issue: return clock.issue(stream, charge.issue, call);
            case CommMoment::wait: return clock.stall(stream, charge.wait, call);
            case CommMoment::done: return clock.resume(stream);
          }
        });
  });
}

}  // namespace trainerd::core::train
