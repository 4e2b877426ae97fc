#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace trainerd::core::run {

/// The agent that leads a run.
struct LeadRecord {
  std::string address = {};  ///< "host:port" of its rendezvous; empty: not serving yet
  std::string host = {};     ///< its host name, for messages
  std::int64_t epoch = 0;    ///< larger for each agent that takes the lead
};

/// Thrown when this agent led the run and another may lead now. This agent must not write to the run any
/// more.
struct LeadLost : base::CommError {
  explicit LeadLost(const std::string& why, std::source_location where = std::source_location::current())
      : CommError(base::ErrorKind::comm, why, where) {}
};

/// The lead of a run, kept outside its agents so that another agent can take it over. At most one agent holds
/// it, as long as a thread of the coordinator renews its lease. All functions but `leads` are called by one
/// thread.
class Coordinator {
 public:
  virtual ~Coordinator() = default;

  /// The present leader, if there is one. Throws CommError if the coordinator does not answer.
  virtual std::optional<LeadRecord> leader() = 0;
  /// Takes the lead if it is free; returns false if it is taken. Throws CommError as above.
  virtual bool claim(const std::string& host) = 0;
  /// Publishes the address at which this agent, the leader, serves the rendezvous. Throws CommError if the
  /// coordinator does not answer or this agent no longer leads.
  virtual void publish(const std::string& address) = 0;
  /// Gives up the lead, so that another agent can take it at once.
  virtual void resign() = 0;

  /// True if this agent leads. False once its lease may have expired, until the next successful `claim`. The
  /// clock used also counts while the process or the machine is suspended. Any thread may call it.
  virtual bool leads() const = 0;
  /// Number of the present lead, or of the last one.
  virtual std::int64_t epoch() const = 0;

  struct News {
    std::string text;
    bool lead_lost = false;
  };
  /// Events of the lease since the last call.
  virtual std::vector<News> take() = 0;
  /// Readable when `take` has an event.
  virtual int event_fd() const = 0;
  /// The numeric address of this host on its route to the coordinator. A loopback address only if all members
  /// of the coordinator are on this host. Throws CommError.
  virtual std::string own_address() = 0;
  /// The name by which the coordinator knows the run, the same for all its agents.
  virtual const std::string& run() const = 0;
  /// "etcd://10.0.0.1:2379".
  virtual std::string name() const = 0;
};

}  // namespace trainerd::core::run
