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
  std::string address = {};  ///< "host:port" of its rendezvous; empty: it does not serve yet
  std::string host = {};     ///< its name, for people
  std::int64_t epoch = 0;    ///< larger for each agent that takes the lead
};

/// This agent led the run and must not any more: another may. What it was about to write is another's.
struct LeadLost : base::CommError {
  explicit LeadLost(const std::string& why, std::source_location where = std::source_location::current())
      : CommError(base::ErrorKind::comm, why, where) {}
};

/// The lead of a run, kept outside of its agents, so that another can take over. At most one agent holds it,
/// as long as it renews its lease, which a thread of the coordinator does. One thread calls all functions but
/// `leads`.
class Coordinator {
 public:
  virtual ~Coordinator() = default;

  /// The present leader, if there is one. Throws CommError when the coordinator does not answer.
  virtual std::optional<LeadRecord> leader() = 0;
  /// Takes the lead if it is free; false when it is taken. Throws CommError as above.
  virtual bool claim(const std::string& host) = 0;
  /// Publishes the address at which this agent, the leader, serves the rendezvous. Throws CommError, also
  /// when it does not lead any more.
  virtual void publish(const std::string& address) = 0;
  /// Gives the lead up, so that another can take it at once.
  virtual void resign() = 0;

  /// Whether this agent leads, by its own clock, which also runs while the process or the machine does not:
  /// false once its lease may be over, and from then on until the next `claim`. Any thread.
  virtual bool leads() const = 0;
  /// Of the present lead, or the last.
  virtual std::int64_t epoch() const = 0;

  struct News {
    std::string text;
    bool lead_lost = false;
  };
  /// What happened to the lease since the last call.
  virtual std::vector<News> take() = 0;
  /// Readable when `take` has something.
  virtual int event_fd() const = 0;
  /// The numeric address of this host on its way to the coordinator: that of the loopback interface only
  /// where no part of the coordinator is on another host. Throws CommError.
  virtual std::string own_address() = 0;
  /// By which it knows the run: the same for all agents of it.
  virtual const std::string& run() const = 0;
  /// "etcd://10.0.0.1:2379".
  virtual std::string name() const = 0;
};

}  // namespace trainerd::core::run
