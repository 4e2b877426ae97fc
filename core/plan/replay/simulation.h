#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "core/plan/cost/link_sharing.h"
#include "core/plan/replay/replay.h"
#include "core/plan/replay/timed_rank.h"

// The discrete-event simulation behind replay.h: ranks that go through their timed segments (simulation.cpp),
// and the messages and collectives that share the links between them (transfers.cpp).

namespace trainerd::core::plan {

using Part = base::LedgerPart;

/// Steps of a replay: the second, which begins as the first left the ranks, is the one that is looked at.
constexpr int kReplayedSteps = 2;

/// A message's costs by its sender: to the rank after it, and to the one before.
using MessageCosts = std::vector<std::array<TransferCost, 2>>;
inline bool is_next(const parallel::ScheduleShape& shape, int from, int to) {
  return (from + 1) % shape.stages == to;
}

/// Messages that go out together.
struct Flight {
  struct Message {
    std::size_t id;
    bool sends;
    const parallel::Action* action;  ///< none: emitted already
  };
  std::vector<Message> messages;
  bool begun = false;  ///< messages in order: those before it are through
};

struct ReplayMessage {
  double sent = -1, received = -1;  ///< when each end came to it
  double end = -1;                  ///< when it has landed
};

/// Ranks that meet: they go at the longest of their costs when the last of them has come.
struct Meeting {
  std::vector<PortUse> came;
  double end = -1;
};

class ReplaySimulation {
 public:
  ReplaySimulation(const ReplayInput& in, const std::vector<std::vector<parallel::Action>>& lists,
                   const std::vector<TimedRank>& timed, const MessageCosts& messages,
                   const ReplayOptions& options);
  Replay run();

 private:
  struct Collective {
    int index = -1;  ///< of the record; none: over when it is issued
    const parallel::Action* action = nullptr;
    int step = 0;
    double start = 0, end = -1;
  };
  struct Group {
    const parallel::GroupInfo* info = nullptr;
    std::vector<Collective> issued = {};
    std::size_t ended = 0;  ///< of those that are not meetings
  };
  enum class Phase : std::uint8_t { start, before, actions, landing, after };
  struct Rank {
    int index = 0;
    const TimedRank* timed = nullptr;
    double factor = 1;                         ///< of its work now
    const parallel::Action* action = nullptr;  ///< under way
    double now = 0, host = 0, began = 0, pass_ended = 0, pass_busy = 0;
    int step = 0;
    Phase phase = Phase::start;
    std::size_t at = 0;                     ///< action or flight
    const TimedSegment* segment = nullptr;  ///< of its action, if there is one
    std::size_t event = 0;                  ///< of the segment that it passes now
    bool parked = false;                    ///< until something ends that it waits for
    int under_way = 0;                      ///< transfers of its groups and messages, queued ones too
    bool carries = false;                   ///< a transfer that it has stopped for
    double carried = -1;                    ///< when that ended
    std::vector<Group> groups;
    std::vector<Flight> flights;
    std::size_t through = 0;                       ///< flights, of messages in order
    std::vector<std::int64_t> recvs;               ///< flights, by direction, chunk and microbatch
    std::vector<std::vector<std::int64_t>> sends;  ///< flights, by direction and chunk
    base::TimeLedger ledger;
  };

  static bool forwards(parallel::ActionKind kind) {
    return kind == parallel::ActionKind::send_forward || kind == parallel::ActionKind::recv_forward;
  }
  int local(int chunk) const { return chunk / in_.schedule.stages; }

  /// A message by its receiver's chunk and microbatch.
  std::size_t message_of(const parallel::Action& a, int step) const;
  std::size_t lane(bool forward, int chunk) const {
    return (forward ? 0 : 1) * static_cast<std::size_t>(in_.schedule.virtual_stages) +
           static_cast<std::size_t>(local(chunk));
  }

  std::size_t place(const parallel::Action& a, bool forward) const {
    return lane(forward, a.chunk) * static_cast<std::size_t>(in_.schedule.microbatches) +
           static_cast<std::size_t>(a.microbatch);
  }

  /// Messages that go out as one.
  void post(Rank& rank, std::span<const parallel::Action> group);
  /// The rank has come to a message.
  void come(const Rank& rank, const Flight::Message& message);
  /// Messages in order: the rank comes to its next ones when those before them are through.
  void exchange(Rank& rank);
  /// Goes on to when the flight has landed; false when that is not known yet.
  bool land(Rank& rank, std::int64_t index);
  /// The second step is the one that is looked at.
  void emit(const Rank& rank, ReplaySlice::Kind kind, const char* name, const parallel::Action* action,
            double start, double seconds) const;
  void emit(const Rank& rank, int step, ReplaySlice::Kind kind, const char* name,
            const parallel::Action* action, double start, double seconds) const;
  /// What the rank does from now on, an action or what is before and after all.
  void enter(Rank& rank, const parallel::Action* action) const;
  void spend(Rank& rank, double seconds, Part part);
  void work(Rank& rank, const TimedEvent& e);
  /// A collective that stops the rank; false until it has ended.
  bool carry(Rank& rank, const TimedEvent& e);
  void issue(Rank& rank, const TimedEvent& e);
  /// The next collective of a group goes when those before it have ended.
  void go_on(Rank& rank, int g);
  void send(std::size_t id, int from, int to);
  bool wait(Rank& rank, const TimedEvent& e);
  /// Events from where the rank stands in them; false when it must wait, for its turn or for what has not
  /// ended.
  bool pass(Rank& rank, const TimedSegment& segment);
  void start_step(Rank& rank);
  /// The step that the rank can take next; false when it has none, is ahead of the clock, or must wait for
  /// something to end.
  bool advance(Rank& rank);
  bool act(Rank& rank);
  bool compute(Rank& rank);
  /// What the executor awaits before it computes: the message that it reads, and the send of what it writes
  /// anew, two before.
  bool land_for(Rank& rank, const parallel::Action& a);
  /// Whose a transfer is.
  struct Owner {
    enum class Kind : std::uint8_t { stop, group, meeting, message } kind = Kind::stop;
    int rank = 0, peer = 0;  ///< a message's are its ends
    int group = 0;
    std::size_t message = 0;
    Meeting* meeting = nullptr;
  };
  void begin(const Owner& owner, double latency, double bandwidth, std::span<const PortUse> uses);
  void finish(const Owner& o);
  void wake(Rank& rank);
  /// All ranks and transfers in the order of time. What ends does so before anything else goes on at that
  /// time.
  void go();

  const ReplayInput& in_;
  const std::vector<std::vector<parallel::Action>>& lists_;
  const MessageCosts& message_costs_;
  const ReplayOptions& options_;
  std::vector<Rank> ranks_;
  std::vector<ReplayMessage> messages_;
  std::map<parallel::Group, std::map<std::size_t, Meeting>> meetings_;
  std::map<parallel::Group, int> members_;
  LinkSharing links_;
  std::vector<Owner> owners_;  // by transfer
  double clock_ = 0;
  using Wakeup = std::pair<double, int>;
  std::priority_queue<Wakeup, std::vector<Wakeup>, std::greater<Wakeup>> wakeups_;  // when ranks are to go on
};

}  // namespace trainerd::core::plan
