#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/run/nodes/node_messages.h"
#include "core/run/supervise/hang_inquiry.h"
#include "core/run/supervise/hang_verdict.h"
#include "core/run/supervise/straggler_watch.h"
#include "io/records/records.h"

namespace trainerd::core::run {

class Attempt;
class Run;

/// Messages of an attempt between its nodes that this supervisor makes and reads.
template <class Message>
concept RankMessage = std::is_same_v<Message, HangSuspected> || std::is_same_v<Message, ShowRanks> ||
    std::is_same_v<Message, RankSeen> || std::is_same_v<Message, RankTimes> ||
    std::is_same_v<Message, RanksDoing>;

/// Fails an attempt that hangs and reports slow ranks. Every node has one; the first node's decides for all.
class RankSupervisor {
 public:
  explicit RankSupervisor(Run& run);
  /// Sets the planned time per step; none if the cluster has no rates.
  void plan(std::optional<double> step_seconds) { limits_.planned_step_seconds = step_seconds; }
  /// All ranks are ready. `peak_flops` is of one rank, in FLOP/s; 0: unknown.
  void on_ready(const parallel::Layout& layout, double peak_flops);

  /// The pages of this node's ranks have been read.
  void on_look(Attempt& attempt);
  void on_message(Attempt& attempt, const HangSuspected& m);
  void on_message(Attempt& attempt, const ShowRanks& m);
  void on_message(Attempt& attempt, const RankSeen& m);
  /// Step times of ranks, of this node or another.
  void on_status(Attempt& attempt, const io::RankStatusRecord& record);
  void on_message(Attempt& attempt, const RankTimes& m);
  void on_message(Attempt& attempt, const RanksDoing& m);
  /// Another attempt begins after this one.
  void restart(const Attempt& before);
  /// By the rank's place in the node: usual times from the previous attempt; empty if there was none.
  const std::vector<UsualTimes>& usual() const { return usual_; }

 private:
  void inquire(Attempt& attempt);
  void decide(Attempt& attempt, const std::vector<RankSight>& sights);
  void report(Attempt& attempt, const HangVerdict& verdict, const std::vector<RankSight>& sights);
  std::string keep(const HangVerdict& verdict, const std::vector<RankSight>& sights) const;
  void add(Attempt& attempt, const RankTime& time);
  void show(Attempt& attempt);

  Run& run_;
  HangLimits limits_;
  std::optional<HangInquiry> inquiry_;  ///< node 0's, for the present attempt
  std::vector<UsualTimes> usual_;
  std::string reported_;                        ///< the latest verdict that did not end the attempt
  std::unique_ptr<StragglerWatch> stragglers_;  ///< node 0's
  std::map<std::int64_t, RankTime> times_;      ///< of this node's ranks, not sent yet
  double times_sent_at_ = 0;
  double shown_at_ = 0;  ///< what the ranks do
};

}  // namespace trainerd::core::run
