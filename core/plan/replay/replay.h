#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/plan/cost/cost_model.h"
#include "core/rank/record.h"
#include "io/records/records.h"

namespace trainerd::core::plan {

/// What the replay of a step needs. Pipeline ranks stand for all ranks that do as they do.
struct ReplayInput {
  parallel::ScheduleShape schedule;
  std::vector<const rank::RankRecord*> records;  ///< by pipeline rank
  bool overlap_p2p = true;                       ///< messages are awaited where they are used
  /// A rank's messages move in the order of issue, each when the one before it is through and its other end
  /// has come to it, and a send ends with its receive (NCCL). If not, a send is copied and over: the message
  /// is on its way, whatever else is (between processors).
  bool messages_in_order = true;
  bool own_progress = true;  ///< collectives in the background have a unit of their own; if not, they take
                             ///< the compute stream's
  std::function<double(const rank::RecordedOp&)> op_seconds;
  /// Of the host to issue an operator or collective. It runs ahead of the device, from the end of the last
  /// step on, and the device waits where it has caught up.
  double launch_seconds = 0;
  /// By pipeline rank, whether it puts the lists of operators between collectives on the device as graphs
  /// (GraphIssue); empty: none does. One takes a launch, and for each operator the host `compared_seconds`.
  std::vector<bool> graphs = {};
  double compared_seconds = 0;
  bool messages_stop_host = false;  ///< it waits for the device before and after each message, and so runs
                                    ///< ahead within an action alone
  std::function<TransferCost(std::int64_t pipeline_rank, const rank::RecordedCollective&,
                             const rank::RankRecord&)>
      collective_cost;
  /// Of one message from a pipeline rank to another.
  std::function<TransferCost(int from, int to)> message_cost;
};

/// A stretch of the replayed step on one rank.
struct ReplaySlice {
  enum class Kind : std::uint8_t { work, stall, message, collective } kind = Kind::work;
  int rank = 0;
  const char* name = "";  ///< of work and stalls the part of the ledger; of collectives the group
  const parallel::Action* action = nullptr;  ///< that it is part of; a message's own
  double start = 0, seconds = 0;             ///< the earliest is the beginning of the step
};

/// Options of a replay.
struct ReplayOptions {
  /// What a rank's work in an action (null: before and after all actions) takes, as a multiple of the plan;
  /// none: 1. Asked more than once of an action.
  std::function<double(int rank, const parallel::Action* action)> slowdown = {};
  std::function<void(const ReplaySlice&)> observe = {};
};

struct Replay {
  double step_seconds = 0;
  base::TimeLedger mean;                ///< over the pipeline ranks; sums to the step's time
  std::vector<base::TimeLedger> ranks;  ///< by pipeline rank
  double bubble = 0;  ///< part of the pipeline's time, from the first action to the last, in which ranks
                      ///< neither compute nor await their own groups
};

/// Runs the action lists of all pipeline ranks over their records: a compute stream for each rank, and for
/// each of its groups a stream of collectives in the order of issue; those that are not in the background
/// stop the compute stream. Messages that go out as a group are awaited as one, as the executor does; ranks
/// also meet in the groups that span the pipeline. What is under way at once on a port of a rank shares it,
/// see LinkSharing. The step is the second of two, so that what one leaves under way runs into the next.
Replay replay(const ReplayInput& input);

/// The same again and again, over schedules and records that are looked at once.
class Replays {
 public:
  explicit Replays(ReplayInput input);
  ~Replays();
  Replay run(const ReplayOptions& options = {}) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace trainerd::core::plan
