#pragma once

#include <cstddef>
#include <queue>
#include <span>
#include <vector>

#include "core/plan/cost/cost_model.h"

namespace trainerd::core::plan {

/// Use of one rank's ports by a transfer. Ports are full duplex.
struct PortUse {
  enum class Way : std::uint8_t { out, in, both } way = Way::both;
  int rank = 0;
  const TransferCost* cost = nullptr;  ///< the transfer takes its `shares`
};

/// Active transfers on the ports of ranks, in the order of time. Latency does not depend on other transfers.
/// The bytes then move at the pace of the transfer's busiest port: if the shares of all transfers that move
/// there add up to more than 1, all of them slow down in proportion. Two that could each fill a port run at
/// half speed.
class LinkSharing {
 public:
  explicit LinkSharing(std::size_t ranks) : lanes_(ranks * kPorts * 2) {}

  /// Returns an id, which is reused after the transfer has ended. `now` must not be earlier than the last
  /// `start` or `step`.
  std::size_t start(double now, double latency, double bandwidth, std::span<const PortUse> uses);
  /// Time at which the next transfer begins to move or ends; infinity if there is none.
  double next();
  /// Advances to `next()`. Returns the transfer that ended then, or kNone if one began to move.
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t step();

 private:
  struct Use {
    std::size_t lane;
    double share;
  };
  struct Transfer {
    double left = 0;  ///< seconds that the remaining bytes take at full speed, counted at `since`
    double since = 0, speed = 0;
    bool moves = false;
    unsigned changes = 0;  ///< number of speed changes; events with an older number are void
    std::vector<Use> uses;
  };
  struct Lane {
    double load = 0;
    std::vector<std::pair<std::size_t, double>> users;  ///< moving transfers and their shares
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
