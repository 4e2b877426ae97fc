// The store that one process serves to all: concurrent clients, deadlines, and foreign connections to its
// port.

#include <ifaddrs.h>
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
#include "tests/parallel/comm/comm_workers.h"
#include "tests/parallel/comm_program.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

/// A server on a free port, with its log.
struct Served {
  explicit Served(const StoreLimits& limits = {})
      : server(
            base::listen_at({"127.0.0.1", 0}), token, [this](const std::string& line) { note(line); },
            limits),
        at(server.local_endpoint()) {}
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
  const JobToken token = JobToken::random();
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

/// True if the other side closes the connection within five seconds, having sent only answers.
bool closed_by_peer(const base::UniqueFd& fd) {
  char bytes[256];
  for (;;) {
    const ssize_t n = ::recv(fd.get(), bytes, sizeof(bytes), 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
    if (n < 0) return false;
  }
}

std::string greeting_of(const std::string& nonce) {
  return frames::request(frames::kGreet, {}, std::string(frames::kGreeting) + nonce);
}

/// Sends the proof of a client with the token in answer to the server's challenge. Returns the proof.
std::string prove(const Served& served, const base::UniqueFd& fd, const std::string& nonce) {
  std::string challenge(5 + JobToken::kNonceBytes + JobToken::kProofBytes, '\0');
  REQUIRE(::recv(fd.get(), challenge.data(), challenge.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(challenge.size()));
  REQUIRE(challenge[4] == frames::kChallenge);
  const std::string theirs = challenge.substr(5, JobToken::kNonceBytes);
  CHECK(challenge.substr(5 + JobToken::kNonceBytes) ==
        served.token.proof(JobToken::Side::server, nonce, theirs));
  std::string proof =
      frames::request(frames::kProve, {}, served.token.proof(JobToken::Side::client, nonce, theirs));
  say(fd, proof);
  std::string answer(5, '\0');
  CHECK(::recv(fd.get(), answer.data(), answer.size(), MSG_WAITALL) == 5);
  CHECK(answer == frames::answer(frames::kDone));
  return proof;
}

/// A connection admitted as a client of the job. The caller sends the next bytes.
base::UniqueFd admitted_to(const Served& served) {
  const std::string nonce(JobToken::kNonceBytes, 'n');
  base::UniqueFd fd = connect_to(served.at);
  say(fd, greeting_of(nonce));
  prove(served, fd, nonce);
  return fd;
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

TEST_CASE("a store gives all clients the value that one has set, with any key and any bytes",
          "[rendezvous]") {
  Served served;
  TcpStore a(served.at, served.token, 5), b(served.at, served.token, 5);
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

TEST_CASE("a wait ends with the value as soon as it is set, and without one at its deadline",
          "[rendezvous]") {
  Served served;
  TcpStore a(served.at, served.token, 5), b(served.at, served.token, 5);
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
  // A waiting thread does not block another thread of the same client from setting the value.
  std::thread waiting([&] { CHECK(a.wait("own", 60) == "word"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  a.set("own", "word");
  waiting.join();
}

TEST_CASE("concurrent clients lose no addition and no value", "[rendezvous]") {
  constexpr int kClients = 16, kRounds = 50;
  Served served;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int client = 0; client < kClients; ++client)
    threads.emplace_back([&, client] {
      TcpStore store(served.at, served.token, 10);
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
  TcpStore store(served.at, served.token, 5);
  CHECK(store.add("count", 0) == kRounds * kClients * (kClients + 1) / 2);
  store.set("word", "many");
  CHECK_THAT(error_of([&] { store.add("word", 1); }), Catch::Contains("word"));
  store.set("large", std::to_string(INT64_MAX));
  CHECK_THAT(error_of([&] { store.add("large", 1); }), Catch::Contains("large"));
}

TEST_CASE("a full store refuses more values and keeps the old ones", "[rendezvous]") {
  Served served({.stored_bytes = 1000});
  TcpStore store(served.at, served.token, 5);
  store.set("kept", std::string(900, 'k'));
  CHECK_THAT(error_of([&] { store.set("more", std::string(200, 'm')); }), Catch::Contains("full"));
  CHECK(store.get("kept") == std::string(900, 'k'));
  CHECK_FALSE(store.get("more").has_value());
  store.set("kept", "k");
  store.set("more", std::string(200, 'm'));
}

TEST_CASE("a connection that is no client is dropped and logged, and clients continue", "[rendezvous]") {
  using frames::request;
  const std::string greeting = greeting_of(std::string(JobToken::kNonceBytes, 'n'));
  // Bytes from strangers and, after the mark ^, from admitted clients.
  std::vector<std::string> junk = {
      "GET /metrics HTTP/1.1\r\nHost: node0\r\n\r\n",
      std::string("\xff\xff\xff\xff", 4),
      std::string("\0\0\0\0", 4),
      std::string("\x05\0\0\0H\xff\xff\xff\xff", 9),
      request(frames::kGreet, {}, "trainerd store 1"),
      request(frames::kGreet, {}, frames::kGreeting),
      request(frames::kSet, "key", "before any greeting"),
      greeting + request(frames::kSet, "key", "before any proof"),
      greeting + greeting,
      greeting + request(frames::kProve, {}, std::string(JobToken::kProofBytes, 'p')),
      greeting + request(frames::kProve, {}, ""),
      greeting + std::string("\xff\xff\0\0", 4),
      "^" + std::string("\xff\xff\xff\x7f", 4),
      "^" + request('?', "key", "value"),
      "^" + request(frames::kWait, "key", "soon"),
      "^" + request(frames::kWait, "key", "-1"),
      "^" + request(frames::kAdd, "key", "1x"),
      "^" + std::string("\x06\0\0\0S\x02\0\0\0k", 10),
      "^" + request(frames::kJoin, {}, "text") + "more",
  };
  const std::size_t told = junk.size();
  std::mt19937_64 random(11);
  for (int i = 0; i < 100; ++i) {
    std::string bytes = i % 3 == 0 ? greeting : i % 3 == 1 ? "^" : "";
    for (int n = 40 + static_cast<int>(random() % 400); n > 0; --n) bytes += static_cast<char>(random());
    bytes[bytes.size() - 1] = '\x7f';
    junk.push_back(bytes);
  }
  Served served;
  TcpStore store(served.at, served.token, 5);
  store.set("kept", "value");
  for (std::size_t i = 0; i < junk.size(); ++i) {
    INFO("junk " << i);
    const std::size_t before = served.logged();
    const bool client = junk[i].starts_with('^');
    const base::UniqueFd fd = client ? admitted_to(served) : connect_to(served.at);
    say(fd, junk[i].substr(client ? 1 : 0));
    ::shutdown(fd.get(), SHUT_WR);  // random bytes may announce a longer message than follows
    CHECK(closed_by_peer(fd));
    if (i < told) CHECK(served.logged() == before + 1);
  }
  CHECK(served.server.refused() >= static_cast<std::int64_t>(told));
  CHECK(store.get("kept") == "value");
  CHECK_FALSE(store.get("key").has_value());
}

TEST_CASE("a silent connection is closed, and half a message waits for the rest", "[rendezvous]") {
  Served served({.greeting_seconds = 1});
  const base::UniqueFd silent = connect_to(served.at), slow = connect_to(served.at);
  const std::string nonce(JobToken::kNonceBytes, 'n'), greeting = greeting_of(nonce);
  const double begin = base::monotonic_seconds();
  say(slow, greeting.substr(0, 7));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  say(slow, greeting.substr(7));
  prove(served, slow, nonce);
  CHECK(closed_by_peer(silent));
  CHECK(base::monotonic_seconds() - begin < 9);
  CHECK(served.logged() == 1);
}

// Expected value: `printf "trainerd client %s%s" | openssl dgst -sha256 -hmac 0123456789abcdef` with the two
// challenges.
TEST_CASE("a proof is an HMAC-SHA-256 of the sender's role and both challenges", "[rendezvous]") {
  const JobToken token("0123456789abcdef", "the test");
  const std::string ours(JobToken::kNonceBytes, 'c'), theirs(JobToken::kNonceBytes, 's');
  std::string hex;
  for (const char byte : token.proof(JobToken::Side::client, ours, theirs)) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    hex += digits;
  }
  CHECK(hex == "26179e747dd13a97edcb7b57368b1e4d4568ac9d436eb030d5f7888ef8adf56a");
  CHECK(token.proof(JobToken::Side::client, ours, theirs) !=
        token.proof(JobToken::Side::server, ours, theirs));
  CHECK(token.proof(JobToken::Side::client, ours, theirs) !=
        token.proof(JobToken::Side::client, theirs, ours));
  CHECK(JobToken::random().text() != JobToken::random().text());
  CHECK(JobToken::random().text().size() == 64);
}

TEST_CASE("a client with another token reads and changes nothing, nor does a replayed proof",
          "[rendezvous]") {
  Served served;
  TcpStore store(served.at, served.token, 5);
  store.set("kept", "value");
  std::string why;
  CHECK_FALSE(join_store(served.at, JobToken::random(), "I am node 3", 5, why));
  CHECK_THAT(why, Catch::Contains("another token"));
  CHECK_THAT(error_of([&] { TcpStore(served.at, JobToken::random(), 0.2); }),
             Catch::Contains("another token"));
  // A client that replays another client's proof.
  const std::string nonce(JobToken::kNonceBytes, 'n');
  const base::UniqueFd client = connect_to(served.at), thief = connect_to(served.at);
  say(client, greeting_of(nonce));
  const std::string proof = prove(served, client, nonce);
  const std::int64_t before = served.server.refused();
  say(thief, greeting_of(nonce) + proof + frames::request(frames::kSet, "kept", "stolen"));
  CHECK(closed_by_peer(thief));
  CHECK(served.server.refused() == before + 1);
  CHECK(store.get("kept") == "value");
  CHECK_FALSE(served.server.take_joined().has_value());
}

TEST_CASE("a server without the token is not believed", "[rendezvous]") {
  Served ours, stranger;
  std::string why;
  CHECK_FALSE(join_store(stranger.at, ours.token, "weights", 5, why));
  CHECK_THAT(why, Catch::Contains("another token"));
  CHECK_FALSE(stranger.server.take_joined().has_value());
}

TEST_CASE("many refused connections in a row are all counted, but few are logged", "[rendezvous]") {
  Served served;
  for (int i = 0; i < 200; ++i) {
    const base::UniqueFd fd = connect_to(served.at);
    say(fd, "GET / HTTP/1.1\r\n\r\n");
    CHECK(closed_by_peer(fd));
  }
  CHECK(served.server.refused() == 200);
  CHECK(served.logged() == 32 + 2);  // plus the 64th and the 128th
  TcpStore(served.at, served.token, 5).set("key", "value");
}

TEST_CASE("a rendezvous listens at the given address of this machine", "[rendezvous]") {
  const auto address = [](const std::string& host) {
    return base::local_address(base::listen_at({host, 0}).get());
  };
  CHECK(address("127.0.0.1") == "127.0.0.1");
  CHECK(address("localhost") == "127.0.0.1");
  // The address of another machine, a name unknown here, and an address that is loopback on this machine
  // only.
  for (const char* host : {"192.0.2.1", "no-such-host.invalid", "127.0.1.1"}) {
    const base::UniqueFd listener = base::listen_at({host, 0});
    INFO(host);
    CHECK_THAT(base::local_address(listener.get()), Catch::Equals("::") || Catch::Equals("0.0.0.0"));
    CHECK(base::reachable_here(listener.get()) == "127.0.0.1");
  }
  // An address of this machine, if it has one besides loopback.
  ifaddrs* found = nullptr;
  REQUIRE(::getifaddrs(&found) == 0);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(found, &::freeifaddrs);
  for (const ifaddrs* i = found; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    const std::string own = base::own_address(i->ifa_name);
    if (base::is_loopback(own)) continue;
    CHECK(address(own) == own);
    CHECK(base::reachable_here(base::listen_at({own, 0}).get()) == own);
  }
}

TEST_CASE("a joining connection is handed over with its message", "[rendezvous]") {
  Served served;
  std::string why;
  const base::UniqueFd ours = join_store(served.at, served.token, "I am node 3", 5, why);
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

TEST_CASE("a client reports a missing or closed server", "[rendezvous]") {
  auto served = std::make_unique<Served>();
  const base::Endpoint at = served->at;
  const JobToken token = served->token;
  TcpStore store(at, token, 0.2);
  std::thread waiting(
      [&] { CHECK_THAT(error_of([&] { store.wait("never", 60); }), Catch::Contains(at.text())); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  served.reset();
  waiting.join();
  CHECK_THAT(error_of([&] { store.get("key"); }), Catch::Contains(at.text()));
  CHECK_THAT(error_of([&] { TcpStore(at, token, 0.2); }), Catch::Contains(at.text()));
  CHECK_THAT(error_of([&] {
               TcpStore({"no-such-host.invalid", 1}, token, 0.2);
             }),
             Catch::Contains("no-such-host.invalid"));
}

TEST_CASE("two servers cannot share a port", "[rendezvous]") {
  Served served;
  CHECK_THAT(error_of([&] { base::listen_at(served.at); }), Catch::Contains(std::to_string(served.at.port)));
}

TEST_CASE("ranks that meet through the TCP store get the right results over TCP", "[rendezvous]") {
  constexpr std::int64_t kRanks = 3;
  const std::vector<ProgramGroup> groups = program_groups(kRanks);
  // The port is chosen before the fork and served after it: a process must fork with a single thread.
  const std::uint16_t port = [] { return base::local_port(base::listen_at({"127.0.0.1", 0}).get()); }();
  const JobToken token = JobToken::random();
  Workers workers(kRanks, [&](std::int64_t rank) {
    ::signal(SIGPIPE, SIG_IGN);
    TcpStore store({"127.0.0.1", port}, token, 20);
    GlooWorld world(store, rank, {.deadline_seconds = 60});
    run_program(rank, groups, 78, 20, [&](RankMachine& machine, const ProgramGroup& group) {
      return world.communicator(machine.backend, group.ranks, group.name);
    });
  });
  StoreServer server(base::listen_at({"127.0.0.1", port}), token, [](const std::string&) {});
  REQUIRE(workers.wait_all(100));
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    INFO(workers.text(rank));
    CHECK(workers.code(rank) == 0);
  }
}
