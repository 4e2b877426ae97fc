// How the leader treats agents that join, leave and change places during a run.

#include <poll.h>
#include <sys/eventfd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <thread>

#include "core/run/nodes/membership.h"
#include "core/spec/spec.h"
#include "core/version/version.h"
#include "kernels/base/clock.h"
#include "tests/core/run/log_lines.h"

using namespace trainerd;
using namespace trainerd::core;
using Came = run::Membership::Event::What;

namespace {

/// Three nodes without heartbeats: the tests' agents send none and open no second connection.
class Meeting {
 public:
  explicit Meeting(std::int64_t spares = 0) {
    job_ = spec::parse_job(
        "steps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
        "batch: {global: 6, micro: 2}\ndata: {train: [a.txt]}\nparallel: {dp: 3}\ncluster: {nodes: 3}\n",
        "job.yaml");
    job_.cluster.elastic = true;
    job_.cluster.spares = spares;
    job_.supervise.dead_after_seconds = 0.5;
    options_.nodes.nodes = 3;
    options_.rendezvous = {"127.0.0.1", base::local_port(base::listen_at({"127.0.0.1", 0}).get())};
    options_.timeout_seconds = 60;
    options_.token = parallel::JobToken::random();
    auto first = std::async(std::launch::async, [this] { return join(1); });
    auto second = std::async(std::launch::async, [this] { return join(2); });
    leader.emplace(options_, job_, no_signal_.get());
    agents.push_back(first.get());
    agents.push_back(second.get());
    leader->admit_late(true);
    leader->begin({.step = 5, .attempt = 2, .from_memory = true});
    for (run::Channel& agent : agents) REQUIRE(std::get<run::Go>(received(agent)).step == 5);
  }

  run::Channel join(std::int64_t node, bool spare = false, const std::string& agent = "",
                    std::optional<kernels::Isa> isa = {}) const {
    const run::Hello hello{node,
                           3,
                           version::version(),
                           "host" + std::to_string(node),
                           run::shared_job(job_),
                           isa.value_or(kernels::detect_cpu(1, job::most_isa(job_)).isa),
                           agent,
                           spare};
    return run::Channel(connect(run::encode(hello)));
  }
  base::UniqueFd join_beats(const std::string& agent) const {
    return connect(run::encode(run::BeatHello{agent}));
  }

  static run::NodeMessage received(run::Channel& agent) { return run::decode_node_message(*agent.receive()); }

  /// The next event of kind `what`.
  run::Membership::Event next(Came what) {
    const double end = base::monotonic_seconds() + 60;
    while (base::monotonic_seconds() < end) {
      std::vector<pollfd> fds;
      leader->watch(fds);
      ::poll(fds.data(), fds.size(), 20);
      for (run::Membership::Event& event : leader->take(fds)) {
        CHECK(event.what == what);
        if (event.what == what) return std::move(event);
      }
    }
    FAIL("nothing came");
    return {};
  }

  /// Serves the leader for 0.2 s.
  void serve() {
    for (const double end = base::monotonic_seconds() + 0.2; base::monotonic_seconds() < end;) {
      std::vector<pollfd> fds;
      leader->watch(fds);
      ::poll(fds.data(), fds.size(), 20);
      CHECK(leader->take(fds).empty());
    }
  }

  /// Closes the agent's connection. Its place then waits for another agent.
  void lose(std::int64_t node) {
    agents.at(static_cast<std::size_t>(node - 1)) = run::Channel(base::UniqueFd());
    CHECK(next(Came::lost).node == node);
    REQUIRE_FALSE(leader->expect(node));
  }

  base::UniqueFd connect(const std::string& text) const {
    std::string why;
    for (;;) {
      if (base::UniqueFd socket = parallel::join_store(options_.rendezvous, *options_.token, text, 10, why))
        return socket;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::optional<run::Membership> leader;
  std::vector<run::Channel> agents;  ///< of nodes 1 and 2

 private:
  job::JobSpec job_;
  run::MembershipOptions options_;
  base::UniqueFd no_signal_{::eventfd(0, EFD_CLOEXEC)};
};

}  // namespace

TEST_CASE("a free place goes to any agent", "[membership]") {
  Meeting meeting(1);
  meeting.lose(1);
  run::Channel spare = meeting.join(0, true);
  auto event = meeting.next(Came::returned);
  CHECK((event.node == 1 && event.text.ends_with("takes the place of node 1")));
  CHECK(std::get<run::TakePlace>(Meeting::received(spare)).node == 1);
  // The host of the former node 1 is started again by its own command.
  meeting.lose(2);
  run::Channel back = meeting.join(1);
  CHECK(meeting.next(Came::returned).node == 2);
  CHECK(std::get<run::TakePlace>(Meeting::received(back)).node == 2);
  CHECK(meeting.leader->spares() == 0);
}

TEST_CASE("an agent without a place learns why", "[membership]") {
  Meeting meeting;
  run::Channel spare = meeting.join(0, true);
  meeting.serve();
  CHECK(std::get<run::End>(Meeting::received(spare)).message ==
        "the job has as many spares as cluster.failures.spares says (0), and all nodes");
  run::Channel other = meeting.join(4);
  meeting.serve();
  CHECK_THAT(std::get<run::End>(Meeting::received(other)).message,
             Catch::EndsWith("is none of the nodes 1 to 2 that node 0 waits for"));
}

TEST_CASE("an agent that cannot have its number learns why, and so does the log", "[membership]") {
  Meeting meeting;
  const test::LogLines log;
  // The connection is neither an agent's nor a heartbeat.
  const base::UniqueFd stranger = meeting.connect("I am node 1");
  meeting.serve();
  CHECK_THAT(log.text(), Catch::Contains("warning: the rendezvous dropped 127.0.0.1: "));
  const kernels::Isa here = kernels::detect_cpu(1, job::most_isa(job::JobSpec{})).isa;
  if (here != kernels::Isa::portable) {
    run::Channel weak = meeting.join(1, false, "", kernels::Isa::portable);
    meeting.serve();
    CHECK(std::get<run::End>(Meeting::received(weak)).message ==
          "the job runs with " + std::string(to_string(here)) +
              " kernels, and this host has portable at the most");
  }
  // Node 1 is alive and stays. The second agent waits for twice `dead_after` plus 2 s.
  run::Channel second = meeting.join(1);
  const std::string why =
      "the job runs already, with a node of each number; end it before it is started again";
  for (const double end = base::monotonic_seconds() + 30;
       log.text().find(why) == std::string::npos && base::monotonic_seconds() < end;)
    meeting.serve();
  CHECK(std::get<run::End>(Meeting::received(second)).message == why);
  CHECK_THAT(log.text(),
             Catch::Contains("warning: an agent with the number of node 1 (host1), on host1 wants to join "
                             "the job: it is turned away: " +
                             why + "\n"));
}

TEST_CASE("agents without heartbeats are reported to others and to themselves", "[membership]") {
  Meeting meeting(1);
  // The agents open the heartbeat connection, but send no heartbeats.
  run::Channel spare = meeting.join(0, true, "a spare's");
  CHECK(meeting.next(Came::spares).text.ends_with("waits as a spare"));
  const base::UniqueFd silent_spare = meeting.join_beats("a spare's");
  const auto left = meeting.next(Came::spares);
  CHECK_THAT(left.text,
             Catch::StartsWith("the spare on host0 has sent no heartbeat for 0.") &&
                 Catch::EndsWith(" s (supervise.dead_after): its agent is stopped, its host is frozen, "
                                 "or the link to it is cut"));
  CHECK_THAT(
      std::get<run::End>(Meeting::received(spare)).message,
      Catch::StartsWith("this spare sent no heartbeat for 0.") && Catch::EndsWith(" s and is given up"));
  meeting.lose(2);
  run::Channel node = meeting.join(2, false, "a node's");
  CHECK(meeting.next(Came::returned).node == 2);
  const base::UniqueFd silent_node = meeting.join_beats("a node's");
  const auto lost = meeting.next(Came::lost);
  CHECK(lost.node == 2);
  CHECK_THAT(lost.text, Catch::StartsWith("it has sent no heartbeat for 0."));
  CHECK_THAT(std::get<run::End>(Meeting::received(node)).message,
             Catch::StartsWith("node 2 (host2) sent no heartbeat for 0.") &&
                 Catch::EndsWith(" s and counts as lost: the run goes on without this agent"));
}

TEST_CASE("an agent of a smaller run that lost a node takes its place", "[membership]") {
  Meeting meeting;
  meeting.lose(2);
  meeting.leader->resize(2, 3);
  CHECK(std::get<run::TakePlace>(Meeting::received(meeting.agents[0])).node == 1);
  meeting.lose(1);
  run::Channel back = meeting.join(2);
  CHECK(meeting.next(Came::returned).node == 1);
  CHECK(std::holds_alternative<run::WaitAsSpare>(Meeting::received(back)));
  CHECK(std::get<run::TakePlace>(Meeting::received(back)).node == 1);
}

TEST_CASE("a run of another size starts from a checkpoint, whatever the one before started from",
          "[membership]") {
  Meeting meeting;
  const run::Go before = meeting.leader->go();
  CHECK((before.from_memory && before.attempt == 2 && !before.run.empty()));
  meeting.lose(1);
  meeting.lose(2);
  meeting.leader->resize(1, 3);
  const run::Go& go = meeting.leader->go();
  CHECK((!go.from_memory && go.attempt == 3 && go.run == before.run && go.isa == before.isa));
}

TEST_CASE("an agent whose number is taken stays as a spare if a smaller run has room", "[membership]") {
  Meeting meeting;
  run::Channel late = meeting.join(2);
  // The agent waits from here on.
  const double end = base::monotonic_seconds() + 60;
  while (!meeting.leader->due_seconds() && base::monotonic_seconds() < end) {
    std::vector<pollfd> fds;
    meeting.leader->watch(fds);
    ::poll(fds.data(), fds.size(), 20);
    CHECK(meeting.leader->take(fds).empty());
  }
  meeting.lose(1);
  meeting.leader->resize(2, 3);
  CHECK_THAT(meeting.next(Came::spares).text, Catch::EndsWith("waits as a spare"));
  CHECK(std::holds_alternative<run::WaitAsSpare>(Meeting::received(late)));
  CHECK(meeting.leader->spares() == 1);
}

TEST_CASE("a message that a node sent before it became a spare does not end it", "[membership]") {
  Meeting meeting;
  run::Channel& agent = meeting.agents[1];
  agent.send(run::encode(run::NodeMessage{run::SnapshotCopied{12, 2, true}}));
  agent.send(run::encode(run::NodeMessage{run::StopAsked{{"SIGTERM", 15}}}));
  meeting.leader->resize(2, 3);
  CHECK(std::holds_alternative<run::WaitAsSpare>(Meeting::received(agent)));
  const auto event = meeting.next(Came::stop);
  CHECK(event.text == "the spare on host2");
  CHECK(std::get<run::StopAsked>(*event.message).request.exit_signal == 15);
  CHECK(meeting.leader->spares() == 1);
  agent = run::Channel(base::UniqueFd());
  CHECK_THAT(meeting.next(Came::spares).text, Catch::EndsWith("has left"));
  CHECK(meeting.leader->spares() == 0);
}

TEST_CASE("messages sent while the link is dropped arrive when it is back", "[membership]") {
  Meeting meeting;
  meeting.leader->drop_link(3600);
  meeting.leader->send(run::SaveHeld{7});
  meeting.agents.at(0).send(run::encode(run::NodeMessage{run::NodeFinished{2}}));
  pollfd unread{meeting.agents.at(0).fd(), POLLIN, 0};
  std::vector<pollfd> fds;
  meeting.leader->watch(fds);
  CHECK(::poll(&unread, 1, 0) == 0);
  CHECK(::poll(fds.data(), fds.size(), 0) == 0);
  CHECK(meeting.leader->due_seconds().value_or(1e9) <= 3600);
  meeting.leader->drop_link(0.01);
  const auto event = meeting.next(Came::message);
  CHECK(event.node == 1);
  CHECK(std::get<run::NodeFinished>(*event.message).attempt == 2);
  for (run::Channel& agent : meeting.agents)
    CHECK(std::get<run::SaveHeld>(Meeting::received(agent)).step == 7);
}
