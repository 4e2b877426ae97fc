#pragma once

#include <poll.h>

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/run/nodes/node_messages.h"
#include "core/run/nodes/token_file.h"
#include "core/run/wire/channel.h"
#include "kernels/base/socket.h"
#include "parallel/comm/rendezvous/tcp_store.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::run {

struct MembershipOptions {
  parallel::NodeSet nodes;
  base::Endpoint rendezvous;     ///< of node 0's agent, as every node can reach it
  double timeout_seconds = 300;  ///< until the last node has come
  std::string interface;  ///< network interface, name or address that this node's workers are reached by;
                          ///< empty: that of its route to node 0
  /// By which the agents know each other; none: node 0 makes one, and leaves it in the output directory for
  /// the others (TokenFile).
  std::optional<parallel::JobToken> token = {};
};

/// The agents of a job's nodes: all meet, or none trains. Node 0's agent leads: it serves the rendezvous,
/// judges who belongs to the job, and hears of everything; the others hold a connection to it, whose end is
/// the end of the node at its other side.
class Membership {
 public:
  /// A node alone.
  Membership() = default;
  /// Meets the others: for the leader until all have come, for the others until it says `Go`. Throws
  /// CommError naming who did not come, SpecError naming who does not belong. A signal ends the wait
  /// (`stopped`).
  Membership(const MembershipOptions& options, const job::JobSpec& job, int signal_fd);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  std::int64_t node() const { return options_.nodes.node; }
  std::int64_t nodes() const { return options_.nodes.nodes; }
  double timeout_seconds() const { return options_.timeout_seconds; }
  bool leads() const { return node() == 0; }
  bool alone() const { return nodes() == 1; }
  /// "node 1 (gpu-07)".
  std::string name_of(std::int64_t node) const;
  /// Whether the run was stopped before it began, or over before (`end`).
  bool over() const { return end_.has_value(); }
  const std::optional<End>& end() const { return end_; }
  /// What a signal to this agent asked for while it waited for the leader, which knows of it.
  const std::optional<StopRequest>& stop() const { return stop_; }
  /// The best instruction set that every node's CPU has and the job allows. Of several nodes.
  kernels::Isa isa() const { return go_.isa; }
  /// The leader's.
  const Go& go() const { return go_; }
  /// Sends the others `Go`. The leader calls it when it holds the output directory. Agents that come later
  /// are told that the job runs already.
  void begin(Go go);

  /// What this node's workers need to meet those of other nodes.
  base::Endpoint store() const;
  std::string interface() const;
  const parallel::JobToken& token() const { return *options_.token; }
  /// Connections to the leader that were none of the job's.
  std::int64_t refused() const { return server_ ? server_->refused() : 0; }

  struct Event {
    std::int64_t node = 0;
    std::optional<NodeMessage> message;  ///< none: the node is lost, or
    bool returned = false;               ///< there again, in a new process (`expect`)
  };
  /// The leader's: a node that is lost may come back, and waits for `begin` then.
  void expect(std::int64_t node) { expected_ = node; }
  /// Appends the descriptors to poll.
  void watch(std::vector<pollfd>& fds) const;
  /// What came, by the descriptors that `watch` appended.
  std::vector<Event> take(std::span<const pollfd> fds);

  /// To the leader, or from it to all. One who is gone is noticed where it is seen.
  void send(const NodeMessage& message);
  /// Tells the other nodes that the run is over, and gives them time to receive it.
  void finish(const End& end);

 private:
  struct Member {
    std::string host;
    std::optional<Channel> channel;
    kernels::Isa isa = kernels::Isa::portable;
  };
  void lead(const job::JobSpec& job, int signal_fd);
  void follow(const job::JobSpec& job, int signal_fd);
  void await_go(int signal_fd);
  void admit(parallel::StoreServer::Joined joined);
  void refuse(const std::string& why);
  std::string objection(const Hello& hello, const std::string& who) const;
  std::vector<Event> meet_late();
  std::vector<Event> receive(std::span<const pollfd> fds);
  std::string missing() const;
  void agree_on_isa();
  std::string host_of(std::int64_t node) const;

  MembershipOptions options_;
  std::string output_;                             ///< of the job
  bool leaves_token_ = false;                      ///< the leader made the token, and writes the token file
  std::optional<TokenFile> token_file_;            ///< of the leader, while others may come
  std::unique_ptr<parallel::StoreServer> server_;  ///< of the leader
  std::vector<Member> members_;                    ///< by node; of a follower the leader alone has a channel
  std::string job_yaml_;                           ///< the leader's: what all must agree on
  std::optional<std::int64_t> expected_;           ///< a lost node that may come back
  std::optional<End> end_;
  Go go_;
  std::optional<StopRequest> stop_;
  bool finished_ = false;
};

/// What all nodes must agree on, as YAML: the resolved job but for the paths of data, which may differ from
/// node to node: the content is compared when all ranks are ready.
std::string shared_job(job::JobSpec job);

/// The end that an error is.
End end_by(const std::exception& error);

}  // namespace trainerd::core::run
