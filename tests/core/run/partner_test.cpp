// Copies of a node's snapshots in the memory of another node's agent.

#include "core/run/nodes/partner.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "core/run/nodes/copy_transfer.h"
#include "core/run/wire/channel.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "parallel/comm/rendezvous/tcp_store.h"
#include "tests/core/run/log_lines.h"

using namespace trainerd;
using namespace trainerd::core;

namespace {

/// Two agents, each the partner of the other.
struct Pair {
  parallel::JobToken token = parallel::JobToken::random();
  parallel::StoreServer store{base::listen_at({"127.0.0.1", 0}), token, [](const std::string&) {}};
  run::Partner one{{0, 1, store.local_endpoint(), "127.0.0.1", token}};
  run::Partner two{{1, 0, store.local_endpoint(), "127.0.0.1", token}};
  Pair() { one.begin(1), two.begin(1); }

  base::Endpoint endpoint_of(std::int64_t node) {
    parallel::TcpStore words(store.local_endpoint(), token, 5);
    return base::parse_endpoint(*words.get("partner/1/" + std::to_string(node))).value();
  }
};

std::shared_ptr<const base::Segment> memory_of(std::int64_t bytes, int seed) {
  auto segment = std::make_shared<base::Segment>(base::Segment::create("partner-test", bytes));
  for (std::size_t i = 0; i < segment->bytes().size(); ++i)
    segment->bytes()[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
  return segment;
}

run::NodeCopy copy_of(std::int64_t node, std::int64_t step) {
  run::NodeCopy copy{node, step, 4 * step, 256 * step, {}};
  const io::TensorSlice upper{"w", kernels::DType::f32, {4, 6}, {0, 0}, {2, 6}, {}},
      lower{"w", kernels::DType::f32, {4, 6}, {2, 0}, {2, 6}, "w#1"};
  copy.ranks.push_back({{upper}, {lower}, 100'000, "", memory_of(100'000, static_cast<int>(step))});
  copy.ranks.push_back({{lower}, {}, 5, "", memory_of(8, 1)});
  return copy;
}

run::Partner::Sent sent_by(run::Partner& partner) {
  for (double end = base::monotonic_seconds() + 20; base::monotonic_seconds() < end;) {
    pollfd p{partner.event_fd(), POLLIN, 0};
    ::poll(&p, 1, 100);
    if (auto sent = partner.take()) return *sent;
  }
  throw base::comm_error("nothing became of the copy");
}

std::vector<std::int64_t> steps_of(const run::Partner& partner) {
  std::vector<std::int64_t> steps;
  for (const run::NodeCopy& copy : partner.kept()) steps.push_back(copy.step);
  return steps;
}

using Steps = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("a partner keeps the two newest copies of a node and gives them back as they were", "[partner]") {
  Pair pair;
  for (const std::int64_t step : {10, 20, 30}) {
    pair.one.send(copy_of(0, step));
    const run::Partner::Sent sent = sent_by(pair.one);
    CHECK(sent.problem.empty());
    CHECK((sent.step == step && sent.bytes == 100'005));
  }
  CHECK(steps_of(pair.two) == Steps{20, 30});
  CHECK(steps_of(pair.one).empty());
  for (const std::int64_t step : {20, 30}) {
    const run::NodeCopy was = copy_of(0, step), is = pair.one.fetch(step);
    CHECK((is.node == 0 && is.step == step && is.cursor == was.cursor && is.tokens == was.tokens));
    CHECK(is.self_contained());
    REQUIRE(is.ranks.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto size = static_cast<std::size_t>(was.ranks[i].bytes);
      REQUIRE(is.ranks[i].bytes == was.ranks[i].bytes);
      CHECK(std::ranges::equal(is.ranks[i].memory->bytes().first(size),
                               was.ranks[i].memory->bytes().first(size)));
      CHECK(is.ranks[i].slices[0].stored_name() == was.ranks[i].slices[0].stored_name());
    }
  }
  CHECK_THROWS_WITH(pair.one.fetch(10), Catch::Contains("node 1 has no copy of step 10 of node 0"));
  CHECK_THROWS_AS(pair.two.fetch(20), base::CommError);  // node 1 has sent no copy
  pair.two.drop_after(20);
  CHECK(steps_of(pair.two) == Steps{20});
}

TEST_CASE("an incomplete copy does not count, and a stranger cannot leave one", "[partner]") {
  Pair pair;
  pair.one.send(copy_of(0, 10));
  REQUIRE(sent_by(pair.one).problem.empty());
  std::string why;
  {
    base::UniqueFd fd = parallel::join_store(pair.endpoint_of(1), pair.token,
                                             R"({"type": "keep", "node": 0, "step": 20})", 5, why);
    REQUIRE(fd);
    run::Channel channel(std::move(fd));
    channel.send(R"({"type": "begin", "node": 0, "attempt": 1, "kept_by_all": -1})");
    channel.send(R"({"type": "copy", "node": 0, "step": 20, "attempt": 1, "cursor": 1, "tokens": 1,)"
                 R"( "ranks": [{"bytes": 64, "xxh3": "", "slices": [], "borrowed": []}]})");
    ::send(channel.fd(), "half", 4, MSG_NOSIGNAL);
  }
  CHECK_FALSE(parallel::join_store(pair.endpoint_of(1), parallel::JobToken::random(),
                                   R"({"type": "keep", "node": 0, "step": 30})", 5, why));
  CHECK(steps_of(pair.two) == Steps{10});
  pair.one.send(copy_of(0, 40));
  CHECK(sent_by(pair.one).problem.empty());
  CHECK(steps_of(pair.two) == Steps{10, 40});
}

TEST_CASE("a copy that was damaged in transit is refused", "[partner]") {
  Pair pair;
  std::string why;
  base::UniqueFd fd = parallel::join_store(pair.endpoint_of(1), pair.token,
                                           R"({"type": "keep", "node": 0, "step": 20})", 5, why);
  REQUIRE(fd);
  run::Channel channel(std::move(fd));
  channel.send(R"({"type": "begin", "node": 0, "attempt": 1, "kept_by_all": -1})");
  channel.send(R"({"type": "copy", "node": 0, "step": 20, "attempt": 1, "cursor": 1, "tokens": 1,)"
               R"( "ranks": [{"bytes": 4, "xxh3": "0123456789abcdef", "slices": [], "borrowed": []}]})");
  ::send(channel.fd(), "four", 4, MSG_NOSIGNAL);
  CHECK_THAT(channel.receive().value_or("nothing"),
             Catch::Contains("refused") && Catch::Contains("damaged on its way to node 1"));
  CHECK(steps_of(pair.two).empty());
}

TEST_CASE("a returned copy that differs from the one sent is refused, and an invalid request is logged",
          "[partner]") {
  Pair pair;
  // Stands in for the partner: it returns bytes that do not match the checksum.
  parallel::StoreServer other(base::listen_at({"127.0.0.1", 0}), pair.token, [](const std::string&) {});
  parallel::TcpStore words(pair.store.local_endpoint(), pair.token, 5);
  words.set("partner/1/1", base::Endpoint{"127.0.0.1", other.port()}.text());
  std::thread gives([&] {
    pollfd asked{other.event_fd(), POLLIN, 0};
    std::optional<parallel::StoreServer::Joined> joined;
    for (int i = 0; i < 600 && !joined; ++i) ::poll(&asked, 1, 100), joined = other.take_joined();
    if (!joined) return;
    run::Channel channel(std::move(joined->socket));
    channel.send(R"({"type": "copy", "node": 0, "step": 20, "attempt": 1, "cursor": 1, "tokens": 1,)"
                 R"( "ranks": [{"bytes": 4, "xxh3": "0123456789abcdef", "slices": [], "borrowed": []}]})");
    ::send(channel.fd(), "four", 4, MSG_NOSIGNAL);
    channel.receive();
  });
  CHECK_THROWS_WITH(pair.one.fetch(20), "the copy of step 20 that node 1 kept is damaged");
  gives.join();
  const test::LogLines log;
  std::string why;
  const base::UniqueFd fd = parallel::join_store(pair.endpoint_of(0), pair.token,
                                                 R"({"type": "take", "node": 0, "step": 20})", 5, why);
  REQUIRE(fd);
  const double end = base::monotonic_seconds() + 60;
  while (log.text().empty() && base::monotonic_seconds() < end) ::usleep(5000);
  CHECK_THAT(log.text(), Catch::Contains("warning: partner copies: a message of unknown type"));
}

TEST_CASE("the copy that all partners have stays until all have a newer one", "[partner]") {
  Pair pair;
  pair.one.send(copy_of(0, 10));
  REQUIRE(sent_by(pair.one).problem.empty());
  // The copies of steps 20 and 30 did not arrive at some other node.
  for (const std::int64_t step : {20, 30}) {
    pair.one.send(copy_of(0, step), 10);
    REQUIRE(sent_by(pair.one).problem.empty());
    CHECK(steps_of(pair.two) == Steps{10, step});
  }
  pair.one.send(copy_of(0, 40), 30);
  REQUIRE(sent_by(pair.one).problem.empty());
  CHECK(steps_of(pair.two) == Steps{30, 40});
}

TEST_CASE("a copy of an attempt that has ended is refused", "[partner]") {
  Pair pair;
  pair.one.send(copy_of(0, 10));
  REQUIRE(sent_by(pair.one).problem.empty());
  // The receiver already knows of the next attempt, the sender does not.
  pair.two.begin(2);
  pair.two.drop_after(10);
  pair.one.send(copy_of(0, 20));
  // The receiver closes the connection with its answer: the sender may see the end first.
  CHECK_THAT(sent_by(pair.one).problem,
             Catch::Contains("an attempt of the run that has ended") ||
                 Catch::Contains("the connection ended while a snapshot was sent"));
  CHECK(steps_of(pair.two) == Steps{10});
  pair.one.begin(2);
  pair.one.send(copy_of(0, 20));
  CHECK(sent_by(pair.one).problem.empty());
  CHECK(steps_of(pair.two) == Steps{10, 20});
}

TEST_CASE("a peer that neither reads nor writes the bytes of a copy is given up on", "[partner]") {
  auto ends = run::Channel::make_pair();
  const timeval soon{.tv_sec = 0, .tv_usec = 50'000};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    REQUIRE(::setsockopt(ends.first.get(), SOL_SOCKET, option, &soon, sizeof(soon)) == 0);
  run::Channel here(std::move(ends.first)), there(std::move(ends.second));
  run::NodeCopy copy = copy_of(0, 10);
  run::send_outline(there, copy);
  CHECK_THROWS_WITH(run::receive_copy(here, {}),
                    Catch::Contains("the other agent sent no part of a snapshot in time"));
  copy.ranks = {{{}, {}, 16 << 20, "", memory_of(16 << 20, 1)}};
  CHECK_THROWS_WITH(run::send_copy(here, copy),
                    Catch::Contains("the other agent took no part of a snapshot in time"));
}

TEST_CASE("a copy to a stopped partner ends when it is no longer wanted", "[partner]") {
  Pair pair;
  // Accepts the connection, as the kernel does for a stopped process, and never answers.
  const base::UniqueFd stopped = base::listen_at({"127.0.0.1", 0});
  parallel::TcpStore words(pair.store.local_endpoint(), pair.token, 5);
  words.set("partner/1/1", base::Endpoint{"127.0.0.1", base::local_port(stopped.get())}.text());
  pair.one.send(copy_of(0, 10));
  pollfd came{stopped.get(), POLLIN, 0};
  REQUIRE(::poll(&came, 1, 60'000) == 1);
  CHECK(pair.one.sending());
  const double begin = base::monotonic_seconds();
  pair.one.stop_sending();
  CHECK_FALSE(sent_by(pair.one).problem.empty());
  CHECK(base::monotonic_seconds() - begin < 20);  // the timeout for an answer is 30 s
}

TEST_CASE("a copy in progress when the leader is lost ends when it is no longer wanted", "[partner]") {
  parallel::JobToken token = parallel::JobToken::random();
  auto store = std::make_unique<parallel::StoreServer>(base::listen_at({"127.0.0.1", 0}), token,
                                                       [](const std::string&) {});
  run::Partner one({0, 1, store->local_endpoint(), "127.0.0.1", token});
  one.begin(1);
  // The partner has not joined yet.
  one.send(copy_of(0, 10));
  one.stop_sending();
  CHECK(sent_by(one).problem == "node 1, which keeps this node's copies, has not said where it listens");
  store.reset();
  one.send(copy_of(0, 20));
  ::usleep(100'000);
  const double begin = base::monotonic_seconds();
  one.stop_sending();
  CHECK_FALSE(sent_by(one).problem.empty());
  CHECK(base::monotonic_seconds() - begin < 6);  // the store's timeout is 10 s
}

TEST_CASE("a sender learns that its partner is lost", "[partner]") {
  parallel::JobToken token = parallel::JobToken::random();
  parallel::StoreServer store(base::listen_at({"127.0.0.1", 0}), token, [](const std::string&) {});
  run::Partner one({0, 1, store.local_endpoint(), "127.0.0.1", token});
  one.begin(1);
  std::make_unique<run::Partner>(run::Partner::Options{1, 0, store.local_endpoint(), "127.0.0.1", token})
      ->begin(1);
  one.send(copy_of(0, 10));
  CHECK_THAT(sent_by(one).problem, Catch::Contains("node 1"));
}

TEST_CASE("partners form a ring, across NVLink domains if these span nodes", "[partner]") {
  for (const auto& [nodes, domain] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{2, 0}, {3, 1}, {5, 0}, {36, 18}, {18, 18}}) {
    std::set<std::int64_t> kept_by;
    for (std::int64_t node = 0; node < nodes; ++node) {
      const std::int64_t partner = run::partner_of(node, nodes, domain);
      CHECK(partner != node);
      if (domain > 1 && domain < nodes) CHECK(partner / domain != node / domain);
      kept_by.insert(partner);
    }
    CHECK(std::cmp_equal(kept_by.size(), nodes));
  }
}
