#pragma once

#include <cstddef>
#include <queue>
#include <span>
#include <vector>

#include "core/plan/cost/cost_model.h"

namespace trainerd::core::plan {

/// A part of a rank's ports that a transfer takes. Ports carry as much out as in at once.
struct PortUse {
  enum class Way : std::uint8_t { out, in, both } way = Way::both;
  int rank = 0;
  const TransferCost* cost = nullptr;  ///< its shares are taken
};

/// Transfers under way on the ports of ranks, in the order of time. A transfer's latency passes whatever else
/// there is; then its bytes go at the pace of the busiest of its ports: where the shares of all that move
/// there are more than the port, all are slower in the same proportion, so that two that could fill it go at
/// half their speed.
class LinkSharing {
 public:
  explicit LinkSharing(std::size_t ranks) : lanes_(ranks * kPorts * 2) {}

  /// No earlier than the last `start` or `step`. An id is another's after its transfer has ended.
  std::size_t start(double now, double latency, double bandwidth, std::span<const PortUse> uses);
  /// When the next transfer begins to move or ends; infinite when there is none.
  double next();
  /// Goes on to `next()`. The transfer that ended then; kNone when one began to move.
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t step();

 private:
  struct Use {
    std::size_t lane;
    double share;
  };
  struct Transfer {
    double left = 0;  ///< seconds of its bytes at full speed, from `since` on
    double since = 0, speed = 0;
    bool moves = false;
    unsigned changes = 0;  ///< of its speed: events of an earlier one are void
    std::vector<Use> uses;
  };
  struct Lane {
    double load = 0;
    std::vector<std::pair<std::size_t, double>> users;  ///< that move, with their shares
  };
  struct Event {
    double time;
    std::size_t transfer;
    unsigned changes;
    bool operator>(const Event& b) const { return time != b.time ? time > b.time : transfer > b.transfer; }
  };

  void take(std::size_t id, const PortUse& use);
  void move(std::size_t id, double now);
  void leave(std::size_t id, double now);
  void set_pace(std::size_t id, double now);

  std::vector<Lane> lanes_;  // by rank, port and way
  std::vector<Transfer> transfers_;
  std::vector<std::size_t> free_;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
};

}  // namespace trainerd::core::plan
