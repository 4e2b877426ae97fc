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

// The discrete-event simulation behind replay.h: ranks that run their timed segments (simulation.cpp), and
// the messages and collectives that share the links between them (transfers.cpp).

namespace trainerd::core::plan {

using Part = base::LedgerPart;

/// Steps of a replay. The second one is reported; it starts with the state that the first left.
constexpr int kReplayedSteps = 2;

/// Costs of a sender's messages: to the next rank, and to the previous one.
using MessageCosts = std::vector<std::array<TransferCost, 2>>;
inline bool is_next(const parallel::ScheduleShape& shape, int from, int to) {
  return (from + 1) % shape.stages == to;
}

/// Messages posted together.
struct Flight {
  struct Message {
    std::size_t id;
    bool sends;
    const parallel::Action* action;  ///< null: emitted already
  };
  std::vector<Message> messages;
  bool begun = false;  ///< with messages_in_order: all earlier flights are done
};

struct ReplayMessage {
  double sent = -1, received = -1;  ///< when each end reached it; -1: not yet
  double end = -1;                  ///< when it arrived; -1: not yet
};

/// A collective that spans the pipeline. It starts when the last rank arrives and takes the longest of their
/// costs.
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
    int index = -1;  ///< index in the record; negative: complete when issued
    const parallel::Action* action = nullptr;
    int step = 0;
    int after = -1;               ///< group of the collective that it follows; negative: none
    std::size_t after_index = 0;  ///< in that group
    bool begun = false;
    double start = 0, end = -1;
  };
  struct Group {
    const parallel::GroupInfo* info = nullptr;
    std::vector<Collective> issued = {};
    std::size_t ended = 0;  ///< number of ended collectives, meetings not counted
  };
  enum class Phase : std::uint8_t { start, before, actions, landing, after };
  struct Rank {
    int index = 0;
    const TimedRank* timed = nullptr;
    double factor = 1;                         ///< slowdown of the current work
    const parallel::Action* action = nullptr;  ///< current action
    const parallel::Action* other = nullptr;   ///< the backward that takes turns with it
    double now = 0, host = 0, began = 0, pass_ended = 0, pass_busy = 0;
    int step = 0;
    Phase phase = Phase::start;
    std::size_t at = 0;                     ///< index of the current action or flight
    const TimedSegment* segment = nullptr;  ///< segment of the current action
    std::size_t event = 0;                  ///< index of the event in the current segment
    bool parked = false;                    ///< waits for a transfer to end
    double beside = 0;     ///< seconds of issued background collectives that no work was beside yet
    int under_way = 0;     ///< unfinished transfers of its groups and messages, including queued ones
    bool carries = false;  ///< the rank is stopped for a transfer
    double carried = -1;   ///< when that transfer ended
    std::vector<Group> groups;
    std::vector<Flight> flights;
    std::size_t through = 0;                       ///< number of finished flights, with messages_in_order
    std::vector<std::int64_t> recvs;               ///< flight index by direction, chunk and microbatch
    std::vector<std::vector<std::int64_t>> sends;  ///< flight indices by direction and chunk
    base::TimeLedger ledger;
  };

  static bool forwards(parallel::ActionKind kind) {
    return kind == parallel::ActionKind::send_forward || kind == parallel::ActionKind::recv_forward;
  }
  int local(int chunk) const { return chunk / in_.schedule.stages; }

  /// Index of a message, by its receiver's chunk and microbatch.
  std::size_t message_of(const parallel::Action& a, int step) const;
  std::size_t lane(bool forward, int chunk) const {
    return (forward ? 0 : 1) * static_cast<std::size_t>(in_.schedule.virtual_stages) +
           static_cast<std::size_t>(local(chunk));
  }

  std::size_t place(const parallel::Action& a, bool forward) const {
    return lane(forward, a.chunk) * static_cast<std::size_t>(in_.schedule.microbatches) +
           static_cast<std::size_t>(a.microbatch);
  }

  /// Posts a group of messages.
  void post(Rank& rank, std::span<const parallel::Action> group);
  /// Records that the rank has reached a message.
  void come(const Rank& rank, const Flight::Message& message);
  /// With messages_in_order: the rank reaches its next messages when all earlier ones are done.
  void exchange(Rank& rank);
  /// Advances the rank to the flight's arrival; false if that time is not known yet.
  bool land(Rank& rank, std::int64_t index);
  /// Reports a slice if it belongs to the second step.
  void emit(const Rank& rank, ReplaySlice::Kind kind, const char* name, const parallel::Action* action,
            double start, double seconds) const;
  void emit(const Rank& rank, int step, ReplaySlice::Kind kind, const char* name,
            const parallel::Action* action, double start, double seconds) const;
  /// Sets the rank's current action; null: before and after all actions.
  void enter(Rank& rank, const parallel::Action* action) const;
  void spend(Rank& rank, double seconds, Part part);
  void work(Rank& rank, const TimedEvent& e);
  /// A collective that stops the rank; false until it has ended.
  bool carry(Rank& rank, const TimedEvent& e);
  void issue(Rank& rank, const TimedEvent& e);
  /// Starts a group's next collective, unless that waits for one of another group. Called when all earlier
  /// ones have ended.
  void go_on(Rank& rank, int g);
  void send(std::size_t id, int from, int to);
  bool wait(Rank& rank, const TimedEvent& e);
  /// Runs the rank's remaining events; false if it must wait for its turn or for a transfer.
  bool pass(Rank& rank, const TimedSegment& segment);
  void start_step(Rank& rank);
  /// Advances the rank by one state; false if it has finished, is ahead of the clock, or must wait for a
  /// transfer.
  bool advance(Rank& rank);
  bool act(Rank& rank);
  bool compute(Rank& rank);
  /// Waits like the executor before a computation: for the message that it reads, and for the send before the
  /// last, whose buffer it overwrites.
  bool land_for(Rank& rank, const parallel::Action& a);
  /// The owner of a transfer.
  struct Owner {
    enum class Kind : std::uint8_t { stop, group, meeting, message } kind = Kind::stop;
    int rank = 0, peer = 0;  ///< the ends of a message
    int group = 0;
    std::size_t message = 0;
    Meeting* meeting = nullptr;
  };
  void begin(const Owner& owner, double latency, double bandwidth, std::span<const PortUse> uses);
  void finish(const Owner& o);
  void wake(Rank& rank);
  /// Runs all ranks and transfers in the order of time. At equal times transfers end before ranks continue.
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
  std::vector<Owner> owners_;  // by transfer id
  double clock_ = 0;
  using Wakeup = std::pair<double, int>;
  std::priority_queue<Wakeup, std::vector<Wakeup>, std::greater<Wakeup>> wakeups_;  // when to resume ranks
};

}  // namespace trainerd::core::plan
