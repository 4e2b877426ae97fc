// Which agent leads after the leader is lost, with a coordinator in memory.

#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "core/run/coordinator/coordinator.h"
#include "core/run/nodes/membership.h"
#include "core/spec/spec.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/socket.h"
#include "tests/core/run/log_lines.h"
#include "tests/io/temp_dir.h"

using namespace trainerd;
using namespace trainerd::core;
using run::LeadRecord;
using run::Membership;

namespace {

/// The lead's state, which all agents share.
struct Lead {
  std::mutex mutex;
  std::optional<LeadRecord> record;
  std::int64_t epochs = 0;

  std::int64_t vacate() {
    const std::lock_guard lock(mutex);
    record.reset();
    return epochs;
  }
};

class MemoryCoordinator final : public run::Coordinator {
 public:
  explicit MemoryCoordinator(Lead& lead) : lead_(lead) {}
  ~MemoryCoordinator() override { resign(); }

  std::optional<LeadRecord> leader() override {
    const std::lock_guard lock(lead_.mutex);
    return lead_.record;
  }
  bool claim(const std::string& host) override {
    const std::lock_guard lock(lead_.mutex);
    if (lead_.record) return false;
    epoch_ = ++lead_.epochs;
    lead_.record = LeadRecord{"", host, epoch_};
    return true;
  }
  void publish(const std::string& address) override {
    const std::lock_guard lock(lead_.mutex);
    lead_.record->address = address;
  }
  void resign() override {
    const std::lock_guard lock(lead_.mutex);
    if (lead_.record && lead_.record->epoch == epoch_) lead_.record.reset();
  }
  bool leads() const override {
    const std::lock_guard lock(lead_.mutex);
    return lead_.record && lead_.record->epoch == epoch_;
  }
  std::int64_t epoch() const override { return epoch_; }
  std::vector<News> take() override { return {}; }
  int event_fd() const override { return -1; }
  std::string own_address() override { return "127.0.0.1"; }
  const std::string& run() const override { return run_; }
  std::string name() const override { return "a coordinator in memory"; }

 private:
  Lead& lead_;
  std::int64_t epoch_ = 0;
  std::string run_ = "a-run";
};

/// A job of three nodes, and the places of its agents.
struct Agents {
  Lead lead;
  job::JobSpec job = spec::parse_job(
      "steps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
      "batch: {global: 6, micro: 2}\ndata: {train: [a.txt]}\nparallel: {dp: 3}\n"
      "supervise: {coordinator: \"etcd://127.0.0.1:1\"}\ncluster: {nodes: 3}\n",
      "job.yaml");
  parallel::JobToken token = parallel::JobToken::random();
  base::UniqueFd no_signal{::eventfd(0, EFD_CLOEXEC)};

  explicit Agents(std::int64_t spares, bool elastic) {
    job.cluster.spares = spares;
    job.cluster.elastic = elastic;
    job.supervise.heartbeat_seconds = 0.05;
    job.supervise.dead_after_seconds = 30;  // no agent is lost by silence
  }

  run::MembershipOptions place(std::int64_t node, const std::string& lost = "") {
    run::MembershipOptions options;
    options.nodes = {.nodes = 3, .node = node, .hosts = {}};
    options.spare = node >= 3;
    options.timeout_seconds = 60;
    options.token = token;
    options.lead.coordinator = std::make_shared<MemoryCoordinator>(lead);
    options.lead.lost = lost;
    options.lead.size_of = [](std::int64_t nodes) { return run::LeadOptions::Size{nodes}; };
    return options;
  }

  /// The agent joins the run or leads it. A leader begins when all agents have joined.
  std::future<std::unique_ptr<Membership>> join(const run::MembershipOptions& options) {
    return std::async(std::launch::async, [this, options] {
      auto agent = std::make_unique<Membership>(options, job, no_signal.get());
      if (agent->leads()) agent->begin({.step = 5});
      return agent;
    });
  }
};

/// Serves connections as an idle leader does, until `done`.
template <class Condition>
void serve_until(Membership& leader, Condition done) {
  const double end = base::monotonic_seconds() + 120;
  while (!done() && base::monotonic_seconds() < end) {
    std::vector<pollfd> fds;
    leader.watch(fds);
    ::poll(fds.data(), fds.size(), 20);
    leader.take(fds);
  }
  REQUIRE(done());
}

}  // namespace

TEST_CASE("a spare takes a lost lead, and node 0's agent is a spare while another leads",
          "[membership][coordinator]") {
  Agents agents(1, false);
  auto first = agents.join(agents.place(0)), second = agents.join(agents.place(1)),
       third = agents.join(agents.place(2));
  {
    const auto leader = first.get(), node1 = second.get(), node2 = third.get();
    CHECK((leader->leads() && leader->node() == 0 && leader->lead_moved().empty()));
    CHECK((node1->node() == 1 && node2->node() == 2 && !node1->leads()));
    CHECK(leader->go().run.starts_with("lead 1 of run "));
    CHECK(leader->write_permit()());
    CHECK(node1->write_permit()());
    // Calls that wait for the leader get LeaderLost.
    CHECK_THROWS_AS(node1->lose_leader("node 0 was lost"), run::LeaderLost);
    agents.lead.vacate();
    CHECK_FALSE(leader->write_permit()());
    CHECK(leader->lead_is_lost());
    CHECK_THROWS_AS(leader->require_lead(), run::LeadLost);
    CHECK_THROWS_WITH(leader->begin({}), Catch::Contains("does not lead the run any more: the lease"));
    // A failure of an agent that has lost the lead does not end the run.
    leader->finish({.failed = true, .kind = base::ErrorKind::device, .message = "the disk"});
    std::vector<Membership::Event> events;
    for (const double end = base::monotonic_seconds() + 120;
         events.empty() && base::monotonic_seconds() < end;) {
      std::vector<pollfd> fds;
      node1->watch(fds);
      ::poll(fds.data(), fds.size(), 100);
      events = node1->take(fds);
    }
    REQUIRE(events.size() == 1);
    CHECK(events[0].what == Membership::Event::What::lost);
    CHECK_FALSE(node1->over());
  }
  run::MembershipOptions told = agents.place(1, "node 0 was lost");
  told.lead.folders = {{10, 2}};
  told.lead.faults_done = {"kill-5-1"};
  second = agents.join(told);
  third = agents.join(agents.place(2, "node 0 was lost"));
  auto spare = agents.join(agents.place(3, "node 0 was lost"));
  const auto leader = spare.get(), node1 = second.get(), node2 = third.get();
  CHECK((leader->leads() && leader->node() == 0));
  CHECK((node1->node() == 1 && node2->node() == 2));
  CHECK(leader->lead_moved() == "node 0 was lost; " + leader->name_of(0) + " leads the run now");
  CHECK(leader->known_folders() == std::map<std::int64_t, std::int64_t>{{10, 2}});
  CHECK(leader->known_faults() == std::vector<std::string>{"kill-5-1"});
  CHECK(node1->go().step == 5);

  leader->admit_late(true);
  auto back = agents.join(agents.place(0));
  serve_until(*leader, [&] { return leader->spares() == 1; });
  leader->finish({.stop_signal = 15});
  CHECK(back.get()->over());
}

TEST_CASE("a node of an elastic job takes the lead, and all get new numbers", "[membership][coordinator]") {
  Agents agents(0, true);
  agents.job.supervise.dead_after_seconds = 2;  // this sets how long the new leader waits for the others
  auto second = agents.join(agents.place(2, "node 0 was lost"));
  auto first = agents.join(agents.place(1, "node 0 was lost"));
  const auto a = first.get(), b = second.get();
  CHECK(a->leads() != b->leads());
  CHECK((a->nodes() == 2 && b->nodes() == 2));
  CHECK(std::min(a->node(), b->node()) == 0);
  CHECK(std::max(a->node(), b->node()) == 1);
  const Membership& leader = a->leads() ? *a : *b;
  CHECK(leader.lead_moved().starts_with("node 0 was lost; node 0"));
  CHECK(leader.job_nodes() == 3);
}

TEST_CASE("an agent that finds no leader in time reports what it knows", "[membership][coordinator]") {
  Agents agents(0, false);
  run::MembershipOptions place = agents.place(1, "node 0 was lost");
  place.lead.wait_seconds = 0.2;
  agents.job.supervise.dead_after_seconds = 0.1;
  CHECK_THROWS_WITH(
      Membership(place, agents.job, agents.no_signal.get()),
      Catch::Contains(
          "node 0 was lost; no agent that leads was found within 0.2s "
          "(checkpoint.partner.wait) of the end of its lease: no agent leads: start the agent of node 0 "
          "again"));
  place = agents.place(0);
  place.rendezvous = {"192.0.2.1", 29500};
  CHECK_THROWS_WITH(Membership(place, agents.job, agents.no_signal.get()),
                    Catch::Contains("192.0.2.1 is none of this host's addresses"));
  agents.lead.record = LeadRecord{"", "host1", 7};
  place = agents.place(1, "node 0 was lost");
  place.lead.wait_seconds = 0.2;
  CHECK_THROWS_WITH(Membership(place, agents.job, agents.no_signal.get()),
                    Catch::Contains("host1 has the lead, and does not serve the rendezvous yet"));
}

TEST_CASE("agents that join while a new leader collects the others take missing agents' places",
          "[membership][coordinator]") {
  Agents agents(0, true);
  agents.job.supervise.dead_after_seconds = 1;
  auto first = agents.join(agents.place(1, "node 0 was lost"));
  for (const double end = base::monotonic_seconds() + 120; base::monotonic_seconds() < end;) {
    const std::lock_guard lock(agents.lead.mutex);
    if (agents.lead.record && !agents.lead.record->address.empty()) break;
  }
  auto second = agents.join(agents.place(2, "node 0 was lost"));
  auto again = agents.join(agents.place(0));  // started again by its old command
  const auto a = first.get(), b = second.get(), c = again.get();
  CHECK((a->leads() && a->nodes() == 3));
  CHECK((b->node() == 2 && b->nodes() == 3));
  CHECK((c->node() == 1 && c->nodes() == 3));
}

TEST_CASE("a leader that accepts connections and never answers delays the others by seconds only",
          "[membership][coordinator]") {
  Agents agents(0, false);
  agents.job.supervise.dead_after_seconds = 0.1;
  const base::UniqueFd frozen = base::listen_at({"127.0.0.1", 0});
  const std::string address = "127.0.0.1:" + std::to_string(base::local_port(frozen.get()));
  agents.lead.record = LeadRecord{address, "host1", 7};
  run::MembershipOptions place = agents.place(1, "node 0 was lost");
  place.lead.wait_seconds = 0.2;
  const double begin = base::monotonic_seconds();
  CHECK_THROWS_WITH(Membership(place, agents.job, agents.no_signal.get()),
                    Catch::Contains("host1 has the lead, and cannot be reached at " + address +
                                    ": it takes connections, and has not answered for 2 s"));
  CHECK(base::monotonic_seconds() - begin < 28);
  // The lost lead's address is not tried while its lease may last.
  place.lead.lost_epoch = 7;
  std::thread successor([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const std::lock_guard lock(agents.lead.mutex);
    agents.lead.record = LeadRecord{"127.0.0.1:1", "host2", 8};
  });
  place.lead.wait_seconds = 0;
  agents.job.supervise.dead_after_seconds = 1;
  CHECK_THROWS_WITH(Membership(place, agents.job, agents.no_signal.get()),
                    Catch::Contains("host2 has the lead, and cannot be reached at 127.0.0.1:1"));
  successor.join();
}

TEST_CASE("an agent that takes the lead and cannot serve gives it up and asks again",
          "[membership][coordinator]") {
  Agents agents(1, false);
  agents.job.supervise.dead_after_seconds = 0.1;
  const base::UniqueFd taken = base::listen_at({"127.0.0.1", 0});
  run::MembershipOptions place = agents.place(3, "node 0 was lost");
  place.rendezvous = {"127.0.0.1", base::local_port(taken.get())};
  place.lead.wait_seconds = 0.2;
  const trainerd::test::LogLines log;
  CHECK_THROWS_WITH(Membership(place, agents.job, agents.no_signal.get()),
                    Catch::StartsWith("node 0 was lost; no agent that leads was found within 0.2s"));
  CHECK(agents.lead.epochs > 1);
  CHECK_FALSE(agents.lead.record.has_value());
  CHECK_THAT(log.text(),
             Catch::Contains("warning: this agent leads, and agents of other hosts cannot reach it at "
                             "127.0.0.1: name the network with --interface"));
}
