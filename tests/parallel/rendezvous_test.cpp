// The store that one process serves to all: many clients at once, deadlines, and whatever else comes to its
// port.

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <random>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/socket.h"
#include "parallel/comm/gloo/gloo_world.h"
#include "parallel/comm/rendezvous/store_frames.h"
#include "parallel/comm/rendezvous/tcp_store.h"
#include "tests/parallel/comm_program.h"
#include "tests/parallel/comm_workers.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

/// A server on a free port, and what it has logged.
struct Served {
  explicit Served(const StoreLimits& limits = {})
      : server(
            {"127.0.0.1", 0}, [this](const std::string& line) { note(line); }, limits),
        at{"127.0.0.1", server.port()} {}
  void note(const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  }
  std::size_t logged() {
    const std::lock_guard lock(mutex);
    return lines.size();
  }
  std::mutex mutex;
  std::vector<std::string> lines;
  StoreServer server;
  base::Endpoint at;
};

base::UniqueFd connect_to(const base::Endpoint& at) {
  std::string why;
  base::UniqueFd fd = base::try_connect(at, 5, why);
  INFO(why);
  REQUIRE(fd);
  base::watch_peer(fd.get(), 5);
  return fd;
}

void say(const base::UniqueFd& fd, const std::string& bytes) {
  ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// Whether the other side closes the connection, with nothing said but answers, within five seconds.
bool closed_by_peer(const base::UniqueFd& fd) {
  char bytes[256];
  for (;;) {
    const ssize_t n = ::recv(fd.get(), bytes, sizeof(bytes), 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
    if (n < 0) return false;
  }
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::CommError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("endpoints are a host and a port", "[rendezvous]") {
  CHECK(base::parse_endpoint("node-1.x:2")->host == "node-1.x");
  CHECK(base::parse_endpoint("[fe80::1%eth0]:29500")->host == "fe80::1%eth0");
  CHECK(base::parse_endpoint("[::1]:29500")->text() == "[::1]:29500");
  CHECK(base::parse_endpoint("10.0.0.7:65535")->port == 65535);
  for (const char* bad : {"", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:1x", "::1:80",
                          "a b:1", "[]:1", "[a%b]:1", "h\n:1"})
    CHECK_FALSE(base::parse_endpoint(bad).has_value());
}

TEST_CASE("an interface of this machine is found by its name, a host name or an address", "[rendezvous]") {
  CHECK(base::own_address("lo") == "127.0.0.1");
  CHECK(base::is_loopback(base::own_address("localhost")));
  CHECK(base::own_address("127.0.0.1") == "127.0.0.1");
  CHECK_THAT(error_of([] { base::own_address("192.0.2.1"); }),
             Catch::Contains("192.0.2.1") && Catch::Contains("network interface"));
  CHECK_THAT(error_of([] { base::own_address("no-such-card0"); }), Catch::Contains("no-such-card0"));
}

TEST_CASE("a store gives all clients what one has set, under any key and with any bytes", "[rendezvous]") {
  Served served;
  TcpStore a(served.at, 5), b(served.at, 5);
  const std::string value("a\0b\n\xff", 5), key("tp/0/../\0 1", 11);
  CHECK(!b.get(key).has_value());
  a.set(key, value);
  CHECK(b.get(key) == value);
  a.set(key, "");
  CHECK(b.get(key) == "");
  const std::string large(900'000, 'x');
  a.set("large", large);
  CHECK(b.wait("large", 5) == large);
}

TEST_CASE("a wait ends with the value as soon as it is there, and without one at its deadline",
          "[rendezvous]") {
  Served served;
  TcpStore a(served.at, 5), b(served.at, 5);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    b.set("late", "here");
  });
  double begin = base::monotonic_seconds();
  CHECK(a.wait("late", 60) == "here");
  CHECK(base::monotonic_seconds() - begin < 30);
  later.join();
  begin = base::monotonic_seconds();
  CHECK_FALSE(a.wait("never", 0.2).has_value());
  CHECK(base::monotonic_seconds() - begin >= 0.19);
  CHECK(base::monotonic_seconds() - begin < 30);
  CHECK_THAT(error_of([&] { wait_for(a, "never", 0.05); }), Catch::Contains("never"));
  // A thread that waits does not keep another of the same client from setting what it waits for.
  std::thread waiting([&] { CHECK(a.wait("own", 60) == "word"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  a.set("own", "word");
  waiting.join();
}

TEST_CASE("clients at once lose no addition and no value", "[rendezvous]") {
  constexpr int kClients = 16, kRounds = 50;
  Served served;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int client = 0; client < kClients; ++client)
    threads.emplace_back([&, client] {
      TcpStore store(served.at, 10);
      for (int i = 0; i < kRounds; ++i) {
        store.add("count", client + 1);
        store.set("from/" + std::to_string(client) + "/" + std::to_string(i), std::to_string(client * i));
        const int other = (client + 1) % kClients;
        if (store.wait("from/" + std::to_string(other) + "/" + std::to_string(i), 20) !=
            std::to_string(other * i))
          ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  TcpStore store(served.at, 5);
  CHECK(store.add("count", 0) == kRounds * kClients * (kClients + 1) / 2);
  store.set("word", "many");
  CHECK_THAT(error_of([&] { store.add("word", 1); }), Catch::Contains("word"));
  store.set("large", std::to_string(INT64_MAX));
  CHECK_THAT(error_of([&] { store.add("large", 1); }), Catch::Contains("large"));
}

TEST_CASE("a store that is full refuses more and keeps what it has", "[rendezvous]") {
  Served served({.stored_bytes = 1000});
  TcpStore store(served.at, 5);
  store.set("kept", std::string(900, 'k'));
  CHECK_THAT(error_of([&] { store.set("more", std::string(200, 'm')); }), Catch::Contains("full"));
  CHECK(store.get("kept") == std::string(900, 'k'));
  CHECK_FALSE(store.get("more").has_value());
  store.set("kept", "k");
  store.set("more", std::string(200, 'm'));
}

TEST_CASE("what is no client is dropped with a word in the log and harms nobody", "[rendezvous]") {
  using frames::request;
  const std::string greeting = request(frames::kGreet, {}, frames::kGreeting);
  std::vector<std::string> junk = {
      "GET /metrics HTTP/1.1\r\nHost: node0\r\n\r\n",
      std::string("\xff\xff\xff\xff", 4),
      std::string("\0\0\0\0", 4),
      std::string("\x05\0\0\0H\xff\xff\xff\xff", 9),
      request(frames::kGreet, {}, "trainerd store 2"),
      request(frames::kSet, "key", "before any greeting"),
      greeting + std::string("\xff\xff\xff\x7f", 4),
      greeting + request('?', "key", "value"),
      greeting + request(frames::kWait, "key", "soon"),
      greeting + request(frames::kWait, "key", "-1"),
      greeting + request(frames::kAdd, "key", "1x"),
      greeting + std::string("\x06\0\0\0S\x02\0\0\0k", 10),
      greeting + request(frames::kJoin, {}, "text") + "more",
  };
  std::mt19937_64 random(11);
  for (int i = 0; i < 100; ++i) {
    std::string bytes = i % 2 == 0 ? greeting : "";
    for (int n = 40 + static_cast<int>(random() % 400); n > 0; --n) bytes += static_cast<char>(random());
    bytes[bytes.size() - 1] = '\x7f';
    junk.push_back(bytes);
  }
  Served served;
  TcpStore store(served.at, 5);
  store.set("kept", "value");
  for (std::size_t i = 0; i < junk.size(); ++i) {
    INFO("junk " << i);
    const std::size_t before = served.logged();
    const base::UniqueFd fd = connect_to(served.at);
    say(fd, junk[i]);
    ::shutdown(fd.get(), SHUT_WR);  // random bytes may announce more than comes
    CHECK(closed_by_peer(fd));
    if (i < 13) CHECK(served.logged() == before + 1);
  }
  CHECK(store.get("kept") == "value");
  CHECK_FALSE(store.get("key").has_value());
}

TEST_CASE("a connection that says nothing is closed and half a message waits for the rest", "[rendezvous]") {
  Served served({.greeting_seconds = 1});
  const base::UniqueFd silent = connect_to(served.at), slow = connect_to(served.at);
  const std::string greeting = frames::request(frames::kGreet, {}, frames::kGreeting);
  const double begin = base::monotonic_seconds();
  say(slow, greeting.substr(0, 7));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  say(slow, greeting.substr(7));
  std::string answer(5, '\0');
  CHECK(::recv(slow.get(), answer.data(), answer.size(), MSG_WAITALL) == 5);
  CHECK(answer == frames::answer(frames::kDone));
  CHECK(closed_by_peer(silent));
  CHECK(base::monotonic_seconds() - begin < 9);
  CHECK(served.logged() == 1);
}

TEST_CASE("a connection that joins is handed over with what it says", "[rendezvous]") {
  Served served;
  std::string why;
  const base::UniqueFd ours = join_store(served.at, "I am node 3", 5, why);
  INFO(why);
  REQUIRE(ours);
  pollfd p{served.server.event_fd(), POLLIN, 0};
  REQUIRE(::poll(&p, 1, 5000) == 1);
  auto joined = served.server.take_joined();
  REQUIRE(joined.has_value());
  CHECK(joined->text == "I am node 3");
  CHECK_FALSE(served.server.take_joined().has_value());
  say(joined->socket, "hello");
  std::string heard(5, '\0');
  CHECK(::recv(ours.get(), heard.data(), heard.size(), MSG_WAITALL) == 5);
  CHECK(heard == "hello");
}

TEST_CASE("a client whose server is not there or goes away says so", "[rendezvous]") {
  auto served = std::make_unique<Served>();
  const base::Endpoint at = served->at;
  TcpStore store(at, 0.2);
  std::thread waiting(
      [&] { CHECK_THAT(error_of([&] { store.wait("never", 60); }), Catch::Contains(at.text())); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  served.reset();
  waiting.join();
  CHECK_THAT(error_of([&] { store.get("key"); }), Catch::Contains(at.text()));
  CHECK_THAT(error_of([&] { TcpStore(at, 0.2); }), Catch::Contains(at.text()));
  CHECK_THAT(error_of([&] {
               TcpStore({"no-such-host.invalid", 1}, 0.2);
             }),
             Catch::Contains("no-such-host.invalid"));
}

TEST_CASE("two servers cannot have one port", "[rendezvous]") {
  Served served;
  CHECK_THAT(error_of([&] { StoreServer(served.at, [](const std::string&) {}); }),
             Catch::Contains(std::to_string(served.at.port)));
}

TEST_CASE("ranks that meet through the TCP store get the right results over TCP", "[rendezvous]") {
  constexpr std::int64_t kRanks = 3;
  const std::vector<ProgramGroup> groups = program_groups(kRanks);
  // The port is taken before the ranks are forked, and served after: forking is for one thread.
  const std::uint16_t port = [] { return base::local_port(base::listen_at({"127.0.0.1", 0}).get()); }();
  Workers workers(kRanks, [&](std::int64_t rank) {
    ::signal(SIGPIPE, SIG_IGN);
    TcpStore store({"127.0.0.1", port}, 20);
    GlooWorld world(store, rank, {.deadline_seconds = 60});
    run_program(rank, groups, 78, 20, [&](RankMachine& machine, const ProgramGroup& group) {
      return world.communicator(machine.backend, group.ranks, group.name);
    });
  });
  StoreServer server({"127.0.0.1", port}, [](const std::string&) {});
  REQUIRE(workers.wait_all(100));
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    INFO(workers.text(rank));
    CHECK(workers.code(rank) == 0);
  }
}
