// Agents whose connection to the leader is incomplete or has gone silent.

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <future>
#include <thread>

#include "core/run/nodes/membership.h"
#include "core/spec/spec.h"
#include "io/storage/file_errors.h"
#include "kernels/base/clock.h"

using namespace trainerd;
using namespace trainerd::core;

namespace {

job::JobSpec linked_job() {
  job::JobSpec job = spec::parse_job(
      "steps: 20\nmodel: {layers: 2, hidden: 64, heads: 4, ffn: 176, vocab: 256, seq_len: 32}\n"
      "batch: {global: 8, micro: 2}\ndata: {train: [a.txt]}\nparallel: {dp: 2}\ncluster: {nodes: 2}\n",
      "job.yaml");
  job.supervise.heartbeat_seconds = 0.1;
  job.supervise.dead_after_seconds = 1;
  return job;
}

run::MembershipOptions linked_options(std::int64_t node, const parallel::JobToken& token,
                                      std::uint16_t port) {
  run::MembershipOptions options;
  options.nodes.nodes = 2;
  options.nodes.node = node;
  options.rendezvous = {"127.0.0.1", port};
  options.timeout_seconds = 60;
  options.token = token;
  return options;
}

std::uint16_t free_port() { return base::local_port(base::listen_at({"127.0.0.1", 0}).get()); }

std::unique_ptr<run::Membership> member(const run::MembershipOptions& options) {
  const base::UniqueFd no_signal(::eventfd(0, EFD_CLOEXEC));
  return std::make_unique<run::Membership>(options, linked_job(), no_signal.get());
}

/// Relays between two sockets until either ends. Bytes from `b` to `a` are delayed by `late`, so that later
/// ones arrive together with them.
void relay(int a, int b, std::chrono::milliseconds late = {}) {
  std::array<char, 65536> bytes;
  for (;;) {
    std::array<pollfd, 2> fds{pollfd{a, POLLIN, 0}, pollfd{b, POLLIN, 0}};
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      if (i == 1) std::this_thread::sleep_for(late);
      const ssize_t n = ::recv(fds[i].fd, bytes.data(), bytes.size(), 0);
      if (n <= 0 || ::send(fds[1 - i].fd, bytes.data(), static_cast<std::size_t>(n), MSG_NOSIGNAL) != n) {
        ::shutdown(a, SHUT_RDWR), ::shutdown(b, SHUT_RDWR);
        return;
      }
    }
  }
}

}  // namespace

TEST_CASE("a node that the leader may count as lost writes nothing into the run's storage", "[membership]") {
  const parallel::JobToken token = parallel::JobToken::random();
  const std::uint16_t port = free_port();
  auto leads = std::async(std::launch::async, [&] { return member(linked_options(0, token, port)); });
  auto follows = std::async(std::launch::async, [&] { return member(linked_options(1, token, port)); });
  const std::unique_ptr<run::Membership> leader = leads.get();
  leader->begin({.step = 5});
  std::atomic<bool> ends{false}, drops{false};
  std::thread serves([&] {
    while (!ends) {
      if (drops.exchange(false)) leader->drop_link(3600);
      std::vector<pollfd> fds;
      leader->watch(fds);
      ::poll(fds.data(), fds.size(), 20);
      leader->take(fds);
    }
  });
  const std::unique_ptr<run::Membership> follower = follows.get();
  const std::function<void()> guard = follower->storage_guard(), of_leader = leader->storage_guard();
  const auto refusal = [&] {
    try {
      guard();
    } catch (const io::StorageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  // The permit does not depend on what this agent reads from its connections.
  for (const double end = base::monotonic_seconds() + 1.5; base::monotonic_seconds() < end; pause())
    CHECK(refusal().empty());
  drops = true;
  const double end = base::monotonic_seconds() + 60;
  while (refusal().empty() && base::monotonic_seconds() < end) pause();
  CHECK_THAT(refusal(),
             Catch::StartsWith("this node has received no heartbeat of node 0") &&
                 Catch::EndsWith(" for 1s (supervise.dead_after) and may count as lost: nothing is "
                                 "written"));
  CHECK_NOTHROW(of_leader());
  ends = true;
  serves.join();
}

TEST_CASE("a leader that takes no second connection is named", "[membership]") {
  const parallel::JobToken token = parallel::JobToken::random();
  parallel::StoreServer server(base::listen_at({"127.0.0.1", 0}), token, [](const std::string&) {});
  base::UniqueFd door = base::listen_at({"127.0.0.1", 0});
  run::MembershipOptions options = linked_options(1, token, base::local_port(door.get()));
  options.timeout_seconds = 1;
  std::thread one([&] {
    pollfd came{door.get(), POLLIN, 0};  // the listener itself does not block
    ::poll(&came, 1, 60'000);
    base::UniqueFd outside(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    door.reset();  // later connections are refused
    std::string why;
    const base::UniqueFd inside = base::try_connect(server.local_endpoint(), 5, why);
    if (outside && inside) relay(outside.get(), inside.get());
  });
  CHECK_THROWS_WITH(member(options), Catch::Contains(" took one connection and not a second (") &&
                                         Catch::Contains("Connection refused") &&
                                         Catch::EndsWith("); see the log of its agent"));
  one.join();
}

TEST_CASE("an agent that gets the go before its second connection still opens it", "[membership]") {
  const parallel::JobToken token = parallel::JobToken::random();
  const std::uint16_t port = free_port();
  base::UniqueFd door = base::listen_at({"127.0.0.1", 0});
  const std::uint16_t far = base::local_port(door.get());
  auto leads = std::async(std::launch::async, [&] { return member(linked_options(0, token, port)); });
  // On the first connection, the go arrives together with the end of the rendezvous handshake.
  std::vector<std::jthread> ways;
  std::atomic<int> came{0};
  std::jthread passes([&] {
    for (pollfd p{door.get(), POLLIN, 0}; came < 2 && ::poll(&p, 1, 10'000) > 0;) {
      const int outside = ::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC);
      const std::chrono::milliseconds late(came++ == 0 ? 500 : 0);
      ways.emplace_back([outside, port, late] {
        const base::UniqueFd near(outside);
        std::string why;
        base::UniqueFd inside;
        for (int tries = 0; !inside && tries < 1000; ++tries) {  // the leader may not listen yet
          inside = base::try_connect({"127.0.0.1", port}, 5, why);
          if (!inside) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        if (inside) relay(near.get(), inside.get(), late);
      });
    }
  });
  auto follows = std::async(std::launch::async, [&] { return member(linked_options(1, token, far)); });
  std::unique_ptr<run::Membership> leader = leads.get();
  leader->begin({.step = 5});
  std::unique_ptr<run::Membership> follower = follows.get();
  CHECK(came == 2);
  leader.reset(), follower.reset();
}

TEST_CASE("a stop that comes while the leader asks the other agents ends the run on all of them",
          "[membership]") {
  const parallel::JobToken token = parallel::JobToken::random();
  const std::uint16_t port = free_port();
  auto leads = std::async(std::launch::async, [&] { return member(linked_options(0, token, port)); });
  auto follows = std::async(std::launch::async, [&] { return member(linked_options(1, token, port)); });
  const std::unique_ptr<run::Membership> leader = leads.get();
  std::atomic<bool> left{false};
  std::thread stops([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    leader->stop_early({"SIGTERM", SIGTERM}, [&](const run::StopRequest&) { left = true; });
  });
  std::int64_t number = 0;
  while (!left) {
    leader->send(run::ShowState{++number});
    std::vector<pollfd> fds;
    leader->watch(fds);
    ::poll(fds.data(), fds.size(), 1);
    leader->works();
    leader->take(fds);
    static_cast<void>(leader->is_there(1));
  }
  stops.join();
  const std::unique_ptr<run::Membership> follower = follows.get();
  CHECK(number > 1);
  REQUIRE(follower->end());
  CHECK((!follower->end()->failed && follower->end()->stop_signal == SIGTERM));
}

TEST_CASE("an agent that a smaller run leaves out forgets its snapshots", "[membership]") {
  const parallel::JobToken token = parallel::JobToken::random();
  const std::uint16_t port = free_port();
  bool forgot = false;
  run::MembershipOptions left_out = linked_options(1, token, port);
  left_out.forget_state = [&] { forgot = true; };
  auto leads = std::async(std::launch::async, [&] { return member(linked_options(0, token, port)); });
  auto follows = std::async(std::launch::async, [&] { return member(left_out); });
  const std::unique_ptr<run::Membership> leader = leads.get();
  leader->begin({.step = 5});
  const std::unique_ptr<run::Membership> follower = follows.get();
  leader->resize(1, 2);
  auto waits = std::async(std::launch::async, [&] {
    const base::UniqueFd no_signal(::eventfd(0, EFD_CLOEXEC));
    follower->await_resize(no_signal.get());
  });
  leader->finish({});
  waits.get();
  CHECK(follower->over());
  CHECK(forgot);
}
