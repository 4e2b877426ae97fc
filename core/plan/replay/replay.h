#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/plan/cost/cost_model.h"
#include "core/rank/record.h"
#include "io/records/records.h"

namespace trainerd::core::plan {

/// Input of a step's replay. Each pipeline rank stands for all ranks that do the same.
struct ReplayInput {
  parallel::ScheduleShape schedule;
  std::vector<const rank::RankRecord*> records;  ///< by pipeline rank
  bool overlap_p2p = true;  ///< messages are awaited where they are used; if not, right after they are posted
  /// True (NCCL): a rank's messages move in the order of issue. Each moves when the one before it is done and
  /// both ends have reached it, and a send ends with its receive. False (between CPUs): a send is copied and
  /// done at once, and the message moves independently of the others.
  bool messages_in_order = true;
  bool own_progress = true;  ///< background collectives run on a unit of their own; if not, they take time of
                             ///< the compute stream
  /// By how much work beside background collectives takes longer; not beside copies from and to the host.
  double slowdown_beside = 0;
  std::function<double(const rank::RecordedOp&)> op_seconds;
  /// Host seconds to issue an operator or collective. The host runs ahead of the device from the end of the
  /// previous step on; the device waits when it has caught up.
  double launch_seconds = 0;
  /// By pipeline rank: true if it launches the lists of operators between collectives as graphs (GraphIssue);
  /// empty: no rank does. A graph costs one launch, plus `compared_seconds` of the host per operator.
  std::vector<bool> graphs = {};
  double compared_seconds = 0;
  bool messages_stop_host = false;  ///< the host waits for the device before and after each message, so it
                                    ///< runs ahead only within an action
  std::function<TransferCost(std::int64_t pipeline_rank, const rank::RecordedCollective&,
                             const rank::RankRecord&)>
      collective_cost;
  /// Cost of one message between two pipeline ranks.
  std::function<TransferCost(int from, int to)> message_cost;
};

/// A time interval of the replayed step on one rank.
struct ReplaySlice {
  enum class Kind : std::uint8_t { work, stall, message, collective } kind = Kind::work;
  int rank = 0;
  const char* name = "";  ///< for work and stalls: the ledger part; for collectives: the group
  const parallel::Action* action = nullptr;  ///< enclosing action; for a message its own action
  double start = 0, seconds = 0;             ///< the earliest slice starts the step
  const parallel::Action* other =
      nullptr;  ///< for work and stalls: the backward that takes turns with `action`
};

/// Options of a replay.
struct ReplayOptions {
  /// Time of a rank's work in an action (null: before and after all actions), as a multiple of the plan's.
  /// Empty: 1. It may be called more than once per action.
  std::function<double(int rank, const parallel::Action* action)> slowdown = {};
  std::function<void(const ReplaySlice&)> observe = {};
};

struct Replay {
  double step_seconds = 0;
  base::TimeLedger mean;                ///< mean over the pipeline ranks; sums to the step's time
  std::vector<base::TimeLedger> ranks;  ///< by pipeline rank
  double bubble = 0;  ///< fraction of the pipeline's time, from the first to the last action, in which ranks
                      ///< neither compute nor wait for their own groups
};

/// Runs the action lists of all pipeline ranks over their records. Each rank has a compute stream, and one
/// stream per group with its collectives in the order of issue. Collectives that are not in the background
/// stop the compute stream. Messages posted as a group are awaited together, like in the executor. Ranks also
/// synchronise in groups that span the pipeline. Simultaneous transfers on a rank's port share it, see
/// LinkSharing. The result is the second of two steps, so that work left over from one step runs into the
/// next.
Replay replay(const ReplayInput& input);

/// Replays the same schedules and records repeatedly; they are analysed once.
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
