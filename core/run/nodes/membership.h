#pragma once

#include <poll.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
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
#include "core/run/wire/channel.h"
#include "kernels/base/socket.h"
#include "parallel/comm/rendezvous/tcp_store.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::run {

/// How the agents find the leader, and go on without one that is lost.
struct LeadOptions {
  std::shared_ptr<Coordinator> coordinator =
      {};                       ///< none: the agent of node 0 leads, and the run ends with it
  std::string lost = {};        ///< of an agent that waits for another leader: why
  std::int64_t lost_epoch = 0;  ///< of the lead of the one that was lost; 0: it is not known
  double wait_seconds = 60;     ///< for that, and after it for the other nodes
  /// By step: the attempt that the folder of its checkpoint will be, as far as this agent knows.
  std::map<std::int64_t, std::int64_t> folders = {};
  std::vector<std::string> faults_done = {};  ///< see Hello
  /// With how many nodes an elastic run goes on, of so many that are there (0: with none), and Go::layout.
  struct Size {
    std::int64_t nodes = 0;
    std::string layout = {};
  };
  std::function<Size(std::int64_t)> size_of = {};
};

struct MembershipOptions {
  parallel::NodeSet nodes;
  /// Of node 0's agent, as every node can reach it. With a coordinator: where this agent serves when it
  /// leads; without a host, at any free port of its interface.
  base::Endpoint rendezvous;
  double timeout_seconds = 300;  ///< until the last node has come
  std::string interface;  ///< network interface, name or address that this node's workers are reached by;
                          ///< empty: that of its route to node 0
  /// By which the agents know each other; none: node 0 makes one, and leaves it in the output directory for
  /// the others (TokenFile).
  std::optional<parallel::JobToken> token = {};
  bool spare = false;  ///< this agent waits until a node is lost, and takes its place
  bool again = false;  ///< it was of the run before (Excluded): a host that refuses connections has ended it
  LeadOptions lead = {};
  /// Called while this agent waits for `Go`: its answer to a leader that asks what it holds in memory.
  std::function<std::vector<StateShown>(const ShowState&)> show_state = {};
};

/// The agent that led is lost, and another may lead (MembershipOptions::lead).
struct LeaderLost : base::CommError {
  LeaderLost(const std::string& why, std::int64_t its_node, bool is_spare, std::int64_t its_epoch,
             std::source_location where = std::source_location::current())
      : CommError(base::ErrorKind::comm, why, where), node(its_node), spare(is_spare), epoch(its_epoch) {}
  std::int64_t node;   ///< of the agent that throws it
  bool spare;          ///< it is one
  std::int64_t epoch;  ///< of the lead that it followed
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
  /// A node alone.
  Membership() = default;
  /// Meets the others: for the leader until all have come, for the others until it says `Go`. Throws
  /// CommError naming the nodes that did not come, SpecError naming those that do not belong. A signal ends
  /// the wait
  /// (`stopped`).
  Membership(const MembershipOptions& options, const job::JobSpec& job, int signal_fd);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  std::int64_t node() const { return options_.nodes.node; }
  /// That the run has now: an elastic one may have fewer than its job.
  std::int64_t nodes() const { return options_.nodes.nodes; }
  std::int64_t job_nodes() const { return job_nodes_; }
  /// That the leader has chosen for them (Go::layout).
  const std::string& layout() const { return go_.layout; }
  double timeout_seconds() const { return options_.timeout_seconds; }
  bool leads() const { return node() == 0; }
  bool alone() const { return nodes() == 1; }
  /// "node 1 (gpu-07)".
  std::string name_of(std::int64_t node) const;
  /// Whether the agent of that node, another than this one, is connected.
  bool is_there(std::int64_t node) const {
    return node < std::ssize(members_) && members_[static_cast<std::size_t>(node)].channel.has_value();
  }
  /// Whether the run was stopped before it began, or over before (`end`).
  bool over() const { return end_.has_value(); }
  const std::optional<End>& end() const { return end_; }
  /// What a signal to this agent asked for while it waited for the leader, which knows of it.
  const std::optional<StopRequest>& stop() const { return stop_; }
  /// The best instruction set that every node's CPU has and the job allows. Of several nodes.
  kernels::Isa isa() const { return go_.isa; }
  /// The leader's.
  const Go& go() const { return go_; }
  /// Seconds by which this host's clock is ahead of the leader's, and the way of `Go`.
  double clock_ahead() const { return clock_ahead_; }
  /// Sends the others `Go`. The leader calls it when it holds the output directory. Agents that come later
  /// get the answer that the job runs already.
  void begin(Go go);

  /// What this node's workers need to meet those of other nodes.
  base::Endpoint store() const;
  std::string interface() const;
  /// The network interface that this agent was given, by name or address; empty: none was.
  const std::string& given_interface() const { return options_.interface; }
  const parallel::JobToken& token() const { return *options_.token; }
  /// Connections to the leader that were none of the job's.
  std::int64_t refused() const { return server_ ? server_->refused() : 0; }

  struct Event {
    enum class What : std::uint8_t {
      message,   ///< what the node said
      lost,      ///< `text` says why
      returned,  ///< a lost node is there again, in a new process (`expect`); `text` if it had no such number
      busy,      ///< it is alive, and its event loop has not turned for `seconds`
      spares,    ///< a spare has come or gone, as `text` says
      stop,      ///< a spare, `text`, asks for one, as `message` says: it was a node until now
      coordinator,  ///< what happens there
      lead_lost,    ///< this agent, which leads, must not any more: another may
    };
    What what = What::message;
    std::int64_t node = 0;
    std::optional<NodeMessage> message = {};
    std::string text = {};
    double seconds = 0;
  };
  /// The leader's: a node that is lost is given to a spare, or may come back; the agent that has its number
  /// then waits for `begin`. True: one has it already.
  bool expect(std::int64_t node);
  /// The leader's: whether lost nodes may be replaced. Until it is said they may not.
  void admit_late(bool allowed) { admits_late_ = allowed; }
  /// Nodes that were lost.
  std::int64_t lost() const { return lost_; }
  /// The leader's, of an elastic run: its nodes are `count` of those that are there and of the spares, with
  /// new numbers; the rest are spares. They wait for `begin`, which says `attempt` and `layout`.
  void resize(std::int64_t count, std::int64_t attempt, const std::string& layout = "");
  /// The others': waits for that.
  void await_resize(int signal_fd);
  /// Agents that wait to take the place of a lost node.
  std::int64_t spares() const { return static_cast<std::int64_t>(spares_.size()); }
  /// Whether some node is late with its sign of life, and may turn out to be lost.
  bool in_doubt() const { return beats_ && beats_->in_doubt(); }
  /// On purpose: for so long nothing that agents say to each other passes here, as over a link that loses
  /// packets. What is sent meanwhile arrives later.
  void drop_link(double seconds);
  /// When `take` has something to do though nothing came: in so many seconds.
  std::optional<double> due_seconds() const;
  /// Appends the descriptors to poll.
  void watch(std::vector<pollfd>& fds) const;
  /// What came is being handled: to be called when the wait for the descriptors is over.
  void works();
  /// What came, by the descriptors that `watch` appended.
  std::vector<Event> take(std::span<const pollfd> fds);

  /// To the leader, or from it to all. A closed peer is detected by the read loop, not here.
  void send(const NodeMessage& message);
  /// Sends the other nodes the end of the run and gives them time to receive it. A leader that has lost the
  /// lead sends nothing (`abandon`).
  void finish(const End& end);
  /// Ends the connections without a message: the others wait for another leader.
  void abandon();

  // With a coordinator:
  bool coordinated() const { return options_.lead.coordinator != nullptr; }
  /// Whether this agent may write what the leader writes, if it leads: false once another may lead. To be
  /// called by any thread, also when the membership is gone.
  std::function<bool()> write_permit() const;
  /// The same as a call that throws LeadLost.
  std::function<void()> write_guard() const;
  /// For what any node writes into the run's storage: the same for the leader. Of another node it throws
  /// io::StorageError while the leader may count the node as lost, as of an agent that was frozen: others
  /// write in its place.
  std::function<void()> storage_guard() const;
  void require_lead() const { write_guard()(); }
  bool lead_is_lost() const { return !write_permit()(); }
  /// "node 0 (host) does not lead the run any more: ..."; without `why`: its lease is over.
  std::string lead_lost_text(const std::string& why = "") const;
  /// The agents that go on without a leader: for a follower that has lost it. Else CommError.
  [[noreturn]] void lose_leader(const std::string& why) const;
  /// The leader's: how it came to lead a run that another led before; empty: none did.
  const std::string& lead_moved() const { return lead_moved_; }
  /// The leader's: what agents know of folders of the attempts before, see LeadOptions.
  const std::map<std::int64_t, std::int64_t>& known_folders() const { return options_.lead.folders; }
  const std::vector<std::string>& known_faults() const { return options_.lead.faults_done; }

 private:
  struct Member {
    std::string host;
    std::optional<Channel> channel;
    kernels::Isa isa = kernels::Isa::portable;
    std::string agent;       ///< a name that no other process has
    std::int64_t beats = 0;  ///< its number there (Heartbeats); 0: none yet
  };
  /// An agent with the number of a node that is there: the node's loss may not have been noticed yet.
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
  void await_go(int signal_fd);
  std::optional<std::string> receive_from_leader();
  void admit(parallel::StoreServer::Joined joined);
  void admit(const Hello& hello, Member member, const std::string& who);
  void refuse(const std::string& why);
  std::string objection(const Hello& hello, const std::string& who) const;
  static std::string who_is(const Hello& hello, const std::string& from);
  std::string taken_by(const Hello& hello) const;
  enum class OnMessage : std::uint8_t { give_up, keep_trying };  ///< of the leader, meanwhile
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
  void send(const std::string& text);
  bool link_is_dropped() const;
  void restore_link();
  Member* member_of_beats(std::int64_t beats);
  void part_with(Member& member, const std::string& why, bool excludes = false);
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
  std::set<std::int64_t> expected_;                ///< lost nodes that may come back
  bool admits_late_ = false;
  std::int64_t max_spares_ = 0;
  std::int64_t job_nodes_ = 1;
  std::int64_t lost_ = 0;
  bool elastic_ = false;
  std::vector<Member> spares_;
  std::vector<Late> late_;
  std::vector<Channel> ghosts_;  ///< to agents that count as lost, until they have read so
  std::unique_ptr<Heartbeats> beats_;
  std::int64_t next_beats_ = 0;
  std::string agent_;  ///< by which the leader knows that both connections are this agent's
  double beat_seconds_ = 0, dead_seconds_ = 0;
  std::optional<End> end_;
  Go go_;
  std::optional<StopRequest> stop_;
  bool finished_ = false;
  double clock_ahead_ = 0;
  bool meets_ = false;       ///< the leader waits for the others
  bool takes_over_ = false;  ///< the leader's, while it meets the others: the run had another leader
  std::string lead_moved_;
  std::int64_t joined_epoch_ = 0;  ///< of the leader that this agent has tried to join last
  double link_back_at_ = 0;
  std::vector<std::string> held_back_;  ///< what was to be sent while the link was dropped
};

/// No message between agents waits longer to leave or to be whole: a frozen peer must not freeze the others.
inline constexpr double kAgentMessageSeconds = 30;
/// For `poll`, until then (monotonic seconds).
int poll_timeout(double deadline);
std::string this_host();
/// The text of a node without signs of life: "has sent no heartbeat for 5.0 s ...".
std::string silence_text(double seconds);

/// What all nodes must agree on, as YAML: the resolved job but for the paths of data, which may differ from
/// node to node: the content is compared when all ranks are ready.
std::string shared_job(job::JobSpec job);

/// The end that an error is.
End end_by(const std::exception& error);

}  // namespace trainerd::core::run
