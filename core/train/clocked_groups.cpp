#include "core/train/clocked_groups.h"

#include <map>

#include "kernels/base/error.h"
#include "parallel/comm/observed_communicator.h"

namespace trainerd::core {
namespace {

using parallel::CommCall;
using parallel::CommMoment;
using Ledger = io::TimeLedger;

/// What a group's operations and the waits for them are charged to.
struct Charge {
  StepClock::Part issue, wait;
};

Charge charge_of(const std::string& group) {
  constexpr Charge tp{&Ledger::exposed_tp, &Ledger::exposed_tp}, dp{&Ledger::exposed_dp, &Ledger::exposed_dp},
      pp{&Ledger::exposed_pp, &Ledger::exposed_pp}, flows{&Ledger::exposed_pp, &Ledger::bubble},
      world{&Ledger::exposed_world, &Ledger::exposed_world};
  static const std::map<std::string, Charge> charges{{"tp", tp}, {"kv", tp}, {"dp", dp}, {"dp_inner", dp}, {"dp_outer", dp},
                                                     {"pp", flows}, {"tied", pp}, {"world", world}};
  const auto found = charges.find(group);
  base::check(found != charges.end(), "every group of ranks has its part of the time ledger");
  return found->second;
}

}  // namespace

RankGroups clocked(const RankGroups& groups, StepClock& clock) {
  return RankGroups(groups, [&clock](const std::string& name, parallel::Communicator& inner) {
    if (inner.size() == 1) return parallel::make_observed(inner, [](kernels::Stream&, CommMoment, const CommCall&) {});
    return parallel::make_observed(inner, [&clock, charge = charge_of(name)](kernels::Stream& stream, CommMoment moment,
                                                                                    const CommCall& call) {
      switch (moment) {
        case CommMoment::issue: return clock.stall(stream, charge.issue, call);
        case CommMoment::wait: return clock.stall(stream, charge.wait, call);
        case CommMoment::done: return clock.resume(stream);
      }
    });
  });
}

}  // namespace trainerd::core
