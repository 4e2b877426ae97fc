#pragma once

#include <poll.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/run/coordinator/coordinator.h"
#include "core/run/nodes/heartbeats.h"
#include "core/run/nodes/node_messages.h"
#include "core/run/nodes/token_file.h"
#include "core/run/stop/stop.h"
#include "core/run/wire/channel.h"
#include "kernels/base/socket.h"
#include "parallel/comm/rendezvous/tcp_store.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::run {

/// How the agents find a leader, and continue when they lose it.
struct LeadOptions {
  std::shared_ptr<Coordinator> coordinator = {};  ///< none: node 0's agent leads, and the run ends with it
  std::string lost = {};        ///< why the leader was lost, at an agent that waits for another
  std::int64_t lost_epoch = 0;  ///< number of the lost lead; 0: unknown
  double wait_seconds = 60;     ///< time limit for a new leader, and then for the other nodes
  /// By step: attempt number of its next checkpoint folder, as far as this agent knows.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::string> faults_done = {};  ///< see Hello
  /// The size that an elastic run continues with: number of nodes (0: none is possible), and Go::layout.
  struct Size {
    std::int64_t nodes = 0;
    std::string layout = {};
  };
  std::function<Size(std::int64_t)> size_of = {};
};

struct MembershipOptions {
  parallel::NodeSet nodes;
  /// Address of node 0's agent that every node can reach. With a coordinator: where this agent serves when it
  /// leads; without a host, any free port of its interface.
  base::Endpoint rendezvous;
  double timeout_seconds = 300;  ///< time until the last node must have joined
  std::string interface;  ///< network interface (name or address) at which other nodes reach this node's
                          ///< workers; empty: that of the route to node 0
  /// The token that authenticates the job's agents. None: node 0 creates one and leaves it in the output
  /// directory (TokenFile).
  std::optional<parallel::JobToken> token = {};
  bool spare = false;  ///< this agent waits until a node is lost, and takes its place
  bool again = false;  ///< it was of the run before (Excluded): a host that refuses connections has ended it
  LeadOptions lead = {};
  /// Called while this agent waits for `Go`: its answer to a leader that asks what it holds in memory.
  std::function<std::vector<StateShown>(const ShowState&)> show_state = {};
  /// Called when a run changes its size and leaves this agent out. From then on the other agents have newer
  /// snapshots than this one.
  std::function<void()> forget_state = {};
};

/// The leader is lost, and another may lead (MembershipOptions::lead).
struct LeaderLost : base::CommError {
  LeaderLost(const std::string& why, std::int64_t its_node, bool is_spare, std::int64_t its_epoch,
             std::source_location where = std::source_location::current())
      : CommError(base::ErrorKind::comm, why, where), node(its_node), spare(is_spare), epoch(its_epoch) {}
  std::int64_t node;   ///< number of the agent that throws it
  bool spare;          ///< that agent is a spare
  std::int64_t epoch;  ///< number of the lost lead
};

/// The run goes on, or may, without this agent: its host was frozen or cut off. It may join again.
struct Excluded : base::CommError {
  Excluded(const std::string& why, std::int64_t its_node, bool is_spare,
           std::source_location where = std::source_location::current())
      : CommError(base::ErrorKind::comm, why, where), node(its_node), spare(is_spare) {}
  std::int64_t node;  ///< of the agent that throws it
  bool spare;         ///< it is one
};

/// The agents of a job's nodes: all meet, or none trains. Node 0's agent leads: it serves the rendezvous,
/// decides which agents belong to the job, and receives every message; the others hold a connection to it,
/// whose end is the end of the node at its other side. Each of them and the leader send each other signs of
/// life (Heartbeats): a node that sends none for `supervise.dead_after` is lost too, and gets `End` if it
/// sends a message later.
class Membership {
 public:
  /// A job of a single node.
  Membership() = default;
  /// Joins the other agents: the leader waits until all have come, the others until it sends `Go`. Throws
  /// CommError that names the missing nodes, or SpecError that names nodes of another job. A signal ends the
  /// wait (`over`, `stop`).
  Membership(const MembershipOptions& options, const job::JobSpec& job, int signal_fd);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  std::int64_t node() const { return options_.nodes.node; }
  /// Number of nodes that the run has now; an elastic run may have fewer than its job.
  std::int64_t nodes() const { return options_.nodes.nodes; }
  std::int64_t job_nodes() const { return job_nodes_; }
  /// The layout that the leader has chosen for these nodes (Go::layout).
  const std::string& layout() const { return go_.layout; }
  double timeout_seconds() const { return options_.timeout_seconds; }
  bool leads() const { return node() == 0; }
  bool alone() const { return nodes() == 1; }
  /// "node 1 (gpu-07)".
  std::string name_of(std::int64_t node) const;
  /// Whether the agent of that node, another than this one, is connected.
  bool is_there(std::int64_t node) const {
    const std::lock_guard lock(in_use_);
    return node < std::ssize(members_) && members_[static_cast<std::size_t>(node)].channel.has_value();
  }
  /// Whether the run was stopped before it began, or over before (`end`).
  bool over() const { return end_.has_value(); }
  const std::optional<End>& end() const { return end_; }
  /// A stop that a signal requested while this agent waited for the leader, which has been sent it.
  const std::optional<StopRequest>& stop() const { return stop_; }
  /// The best instruction set that every node's CPU has and the job allows. Valid with several nodes only.
  kernels::Isa isa() const { return go_.isa; }
  /// The leader's latest `Go`.
  const Go& go() const { return go_; }
  /// Seconds by which this host's clock is ahead of the leader's, plus the delivery time of `Go`.
  double clock_ahead() const { return clock_ahead_; }
  /// On the leader, once it holds the output directory: sends `Go` to the others. Agents that come later are
  /// told that the job is already running.
  void begin(Go go);

  /// The rendezvous address and the interface for this node's workers.
  base::Endpoint store() const;
  std::string interface() const;
  /// The network interface that the user gave, by name or address; empty: none.
  const std::string& given_interface() const { return options_.interface; }
  const parallel::JobToken& token() const { return *options_.token; }
  /// Number of refused connections that did not belong to the job.
  std::int64_t refused() const { return server_ ? server_->refused() : 0; }

  struct Event {
    enum class What : std::uint8_t {
      message,      ///< a message from the node
      lost,         ///< the node is lost; `text` is the reason
      returned,     ///< an agent has taken a lost node's place (`expect`); `text` if it had another number
      busy,         ///< the node is alive, but its event loop has been blocked for `seconds`
      spares,       ///< a spare has joined or left, see `text`
      stop,         ///< the spare `text`, a node until now, requests the stop in `message`
      coordinator,  ///< an event of the coordinator, see `text`
      lead_lost,    ///< this agent led and must not lead any more
    };
    What what = What::message;
    std::int64_t node = 0;
    std::optional<NodeMessage> message = {};
    std::string text = {};
    double seconds = 0;
  };
  /// On the leader, for a lost node: gives its place to a waiting agent or a spare, or lets one take it
  /// later. That agent then waits for `begin`. Returns true if an agent has the place already.
  bool expect(std::int64_t node);
  /// On the leader: whether lost nodes may be replaced. Initially they may not.
  void admit_late(bool allowed) { admits_late_ = allowed; }
  /// Number of nodes that were lost.
  std::int64_t lost() const { return lost_; }
  /// On the leader of an elastic run: the run's nodes become `count` of the present nodes and spares, with
  /// new numbers; the rest become spares. They wait for `begin`, which sends `attempt` and `layout`.
  void resize(std::int64_t count, std::int64_t attempt, const std::string& layout = "");
  /// On the other nodes: waits for that.
  void await_resize(int signal_fd);
  /// Number of agents that wait to take a lost node's place.
  std::int64_t spares() const { return static_cast<std::int64_t>(spares_.size()); }
  /// True if a node's heartbeat is overdue, so the node may be lost.
  bool in_doubt() const { return beats_ && beats_->in_doubt(); }
  /// Injected fault: messages of this agent are neither sent nor received for `seconds`, like a link that
  /// loses packets. Messages to be sent meanwhile are sent later.
  void drop_link(double seconds);
  /// Seconds until `take` has work to do even without an event; none: no such time.
  std::optional<double> due_seconds() const;
  /// Appends the descriptors to poll to `fds`.
  void watch(std::vector<pollfd>& fds) const;
  /// Call it when the poll has returned: from now on the event loop counts as busy.
  void works();
  /// Handles the events of the descriptors that `watch` appended.
  std::vector<Event> take(std::span<const pollfd> fds);

  /// Sends to the leader or, from the leader, to all. A closed peer is detected by the read loop, not here.
  void send(const NodeMessage& message);
  /// Sends the other nodes the end of the run and waits until they have received it, for at most 2 s. A
  /// leader that has lost the lead sends nothing (`abandon`).
  void finish(const End& end);
  /// Another thread's, while this one prepares the run and may use only `send`, `watch`, `works`, `take` and
  /// `is_there`: tells the other nodes of the stop and calls `leave`, which must end the process. Those
  /// functions wait meanwhile.
  void stop_early(const StopRequest& stop, const LeaveProcess& leave);
  /// Closes the connections without a message: the other agents wait for another leader.
  void abandon();

  // With a coordinator:
  bool coordinated() const { return options_.lead.coordinator != nullptr; }
  /// A function that returns true while this agent may write the leader's files: on a leader false once
  /// another may lead; on other nodes always true. Any thread may call it, also after this object has ended.
  std::function<bool()> write_permit() const;
  /// The same as a function that throws LeadLost.
  std::function<void()> write_guard() const;
  /// A guard for all writes to the run's storage. On the leader it is `write_guard`. On another node it
  /// throws io::StorageError while the leader may count the node as lost, for example after it was frozen:
  /// another agent may write in its place.
  std::function<void()> storage_guard() const;
  void require_lead() const { write_guard()(); }
  bool lead_is_lost() const { return !write_permit()(); }
  /// "node 0 (host) does not lead the run any more: ..."; with an empty `why` its lease has expired.
  std::string lead_lost_text(const std::string& why = "") const;
  /// Throws LeaderLost if agents can continue without this leader (with a coordinator), else CommError.
  [[noreturn]] void lose_leader(const std::string& why) const;
  /// On the leader: why it leads a run that another agent led before; empty if none did.
  const std::string& lead_moved() const { return lead_moved_; }
  /// On the leader: the agents' knowledge of earlier attempts' folders, see LeadOptions.
  const std::map<std::int64_t, std::int64_t>& known_folders() const { return options_.lead.folders; }
  const std::vector<std::string>& known_faults() const { return options_.lead.faults_done; }

 private:
  struct Member {
    std::string host;
    std::optional<Channel> channel;
    kernels::Isa isa = kernels::Isa::portable;
    std::string agent;       ///< random id of the process
    std::int64_t beats = 0;  ///< its peer number in Heartbeats; 0: none yet
  };
  /// An agent with the number of a present node. That node's loss may not have been noticed yet.
  struct Late {
    std::int64_t node = 0;
    Member member;
    double until = 0;
  };
  void lead(const job::JobSpec& job, int signal_fd);
  void follow(const job::JobSpec& job, int signal_fd);
  Hello hello_of(const job::JobSpec& job) const;
  enum class Reached : std::uint8_t { no, without_token, joined };
  Reached try_to_join(const Hello& hello, const std::optional<parallel::JobToken>& given, double seconds,
                      std::string& why);
  // With a coordinator (membership_lead.cpp).
  void meet_by_coordinator(const job::JobSpec& job, int signal_fd);
  bool stops_waiting(int signal_fd, double seconds);
  bool may_lead(double vacant_seconds) const;
  bool join_leader(const LeadRecord& leader, const job::JobSpec& job,
                   const std::optional<parallel::JobToken>& given, std::string& why);
  bool lead_if_possible(const job::JobSpec& job, int signal_fd, std::string& why);
  void begin_again(const MembershipOptions& given);
  double notice_seconds() const;
  double answer_seconds() const;
  void check_own_address() const;
  base::UniqueFd listen();
  void take_over(const Hello& hello);
  void fill_places();
  void turn_surplus_away();
  void receive_news(std::vector<Event>& events);
  void await_go(int signal_fd, bool resizes = false);
  std::optional<std::string> receive_from_leader();
  void admit(parallel::StoreServer::Joined joined);
  void admit(const Hello& hello, Member member, const std::string& who);
  void refuse(const std::string& why);
  std::string objection(const Hello& hello, const std::string& who) const;
  static std::string who_is(const Hello& hello, const std::string& from);
  std::string taken_by(const Hello& hello) const;
  enum class OnMessage : std::uint8_t { give_up, keep_trying };  ///< of the leader, during the wait
  void join_beats(OnMessage on_message);
  void admit_beats(const BeatHello& hello, base::UniqueFd socket);
  bool has_room() const;
  void admit_spare(Member member, const std::string& who, std::vector<Event>& events);
  bool turn_away(Member& member, const std::string& who, const std::string& why);
  void meet_late(std::vector<Event>& events);
  void end_waits(std::vector<Event>& events);
  std::vector<Event> receive(std::span<const pollfd> fds);
  void receive_from_spare(std::size_t i, std::vector<Event>& events);
  void receive_reports(std::vector<Event>& events);
  void send_message(const NodeMessage& message);
  void send(const std::string& text);
  bool link_is_dropped() const;
  void restore_link();
  Member* member_of_beats(std::int64_t beats);
  void part_with(Member& member, const std::string& why, bool excludes = false);
  std::string missing() const;
  void agree_on_isa();
  std::string host_of(std::int64_t node) const;

  mutable std::mutex in_use_;  ///< see stop_early
  MembershipOptions options_;
  std::string output_;                   ///< the job's output directory
  bool leaves_token_ = false;            ///< the leader created the token and must leave it in the token file
  std::optional<TokenFile> token_file_;  ///< on the leader, while agents may join
  std::unique_ptr<parallel::StoreServer> server_;  ///< on the leader
  std::vector<Member> members_;      ///< by node; on a follower only the leader's entry has a channel
  std::string job_yaml_;             ///< on the leader: what all nodes must agree on
  std::set<std::int64_t> expected_;  ///< lost nodes whose places are free
  bool admits_late_ = false;
  std::int64_t max_spares_ = 0;
  std::int64_t job_nodes_ = 1;
  std::int64_t lost_ = 0;
  bool elastic_ = false;
  std::vector<Member> spares_;
  std::vector<Late> late_;
  std::vector<Channel> ghosts_;  ///< connections to agents that count as lost, until they have read that
  std::unique_ptr<Heartbeats> beats_;
  std::int64_t next_beats_ = 0;
  std::string agent_;  ///< this process' id, sent on both of its connections to the leader
  double beat_seconds_ = 0, dead_seconds_ = 0;
  std::optional<End> end_;
  Go go_;
  std::optional<StopRequest> stop_;
  bool finished_ = false;
  double clock_ahead_ = 0;
  bool meets_ = false;       ///< the leader is waiting for the other nodes
  bool takes_over_ = false;  ///< on the leader, while it waits: another agent led before
  std::string lead_moved_;
  std::int64_t joined_epoch_ = 0;  ///< number of the lead that this agent last tried to join
  double link_back_at_ = 0;
  std::vector<std::string> held_back_;  ///< messages to send when the dropped link is restored
};

/// Time limit for sending or receiving one message between agents: a frozen peer must not block the others.
inline constexpr double kAgentMessageSeconds = 30;
/// Timeout for `poll` until `deadline` (monotonic seconds).
int poll_timeout(double deadline);
std::string this_host();
/// Error text for a node without heartbeats: "has sent no heartbeat for 5.0 s ...".
std::string silence_text(double seconds);

/// The part of the job that all nodes must agree on, as YAML: the resolved job without the paths of data,
/// which may differ between nodes. The data's content is compared when all ranks are ready.
std::string shared_job(job::JobSpec job);

/// Converts an error to the `End` message of the run.
End end_by(const std::exception& error);

}  // namespace trainerd::core::run
