// Leader election over a real etcd, and how the next leader takes over the output directory.

#include "core/run/coordinator/coordinator.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <thread>

#include "core/run/agent/guarded_storage.h"
#include "core/run/agent/output_directory.h"
#include "core/run/agent/run_sinks.h"
#include "core/run/coordinator/etcd_client.h"
#include "core/run/coordinator/etcd_coordinator.h"
#include "core/run/coordinator/lead_mark.h"
#include "core/spec/etcd_url.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"
#include "kernels/base/output_file.h"
#include "tests/core/run/etcd_server.h"

using namespace trainerd;
using namespace trainerd::core;
using run::Coordinator;
using run::LeadMark;
using test::EtcdServer;
using test::message_of;

namespace {

constexpr double kPatience = 120;  // seconds; enough for a loaded machine

std::unique_ptr<Coordinator> agent_of(const EtcdServer& etcd, double dead_seconds = 60,
                                      const std::string& name = "a-run") {
  return run::make_etcd_coordinator(
      {.members = {etcd.endpoint()}, .run = name, .every_seconds = 0.1, .dead_seconds = dead_seconds});
}

template <class Condition>
bool within_patience(Condition condition) {
  const double end = base::monotonic_seconds() + kPatience;
  while (!condition() && base::monotonic_seconds() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return condition();
}

/// Collects the coordinator's messages until the lead is lost.
std::string news_until_lost(Coordinator& coordinator) {
  std::string text;
  bool lost = false;
  within_patience([&] {
    for (const Coordinator::News& news : coordinator.take()) {
      text += news.text + "\n";
      lost = lost || news.lead_lost;
    }
    return lost;
  });
  return lost ? text : "not lost";
}

}  // namespace

TEST_CASE("etcd elects one leader per run, whose address the others learn, and another after it",
          "[coordinator]") {
  const EtcdServer etcd;
  const auto first = agent_of(etcd), second = agent_of(etcd), stranger = agent_of(etcd, 60, "another-run");
  CHECK_FALSE(second->leader().has_value());
  REQUIRE(first->claim("host \"1\""));
  CHECK(first->leads());
  CHECK_FALSE(second->claim("host2"));
  CHECK_FALSE(second->leads());
  auto leader = second->leader();
  REQUIRE(leader.has_value());
  CHECK((leader->address.empty() && leader->host == "host \"1\"" && leader->epoch == first->epoch()));
  first->publish("10.0.0.1:29500");
  leader = second->leader();
  REQUIRE(leader.has_value());
  CHECK((leader->address == "10.0.0.1:29500" && leader->epoch == first->epoch()));
  CHECK(stranger->claim("host3"));
  CHECK(stranger->own_address() == "127.0.0.1");

  first->resign();
  CHECK_FALSE(first->leads());
  CHECK_FALSE(second->leader().has_value());
  REQUIRE(second->claim("host2"));
  CHECK(second->epoch() > first->epoch());
  CHECK(message_of<base::CommError>([&] {
          first->publish("10.0.0.1:29500");
        }).starts_with("this agent does not lead any more: another has the key /trainerd/a-run/leader"));
  CHECK(second->leader()->address.empty());
  CHECK(second->take().empty());
}

TEST_CASE("a lost lease ends the lead, a restart of etcd does not", "[coordinator]") {
  EtcdServer etcd;
  const auto lead = agent_of(etcd);
  REQUIRE(lead->claim("host1"));
  etcd.kill();
  std::string news;
  CHECK(within_patience([&] {
    for (const Coordinator::News& n : lead->take()) news += n.text + "\n";
    return !news.empty();
  }));
  CHECK(news.starts_with(
      "the lease of this agent's lead cannot be renewed: no member of etcd answers (127.0.0.1:"));
  CHECK(news.find("the run ends here if that lasts 60.0 s (supervise.dead_after)") != std::string::npos);
  CHECK(lead->leads());
  etcd.start();
  CHECK(within_patience([&] {
    for (const Coordinator::News& n : lead->take()) news += n.text + "\n";
    return news.find("answers again") != std::string::npos;
  }));
  REQUIRE(lead->leader().has_value());
  CHECK(lead->leader()->epoch == lead->epoch());

  // Another client revokes the lease.
  run::EtcdClient client({etcd.endpoint()}, 10);
  const auto key = client.get("/trainerd/a-run/leader");
  REQUIRE(key.has_value());
  client.revoke(key->lease);
  CHECK(news_until_lost(*lead) == "etcd says that the lease of this agent's lead is over\n");
  CHECK_FALSE(lead->leads());
  CHECK_FALSE(client.get("/trainerd/a-run/leader").has_value());
  CHECK_FALSE(lead->leads());
  for (const std::string text : {"5", "{}", "{\"address\": 5, \"host\": \"a\"}"}) {
    const auto lease = client.grant(60);
    client.create("/trainerd/a-run/leader", text, lease.id);
    CHECK(message_of<base::CommError>([&] { (void)lead->leader(); }) ==
          "the key /trainerd/a-run/leader in etcd is none that trainerd wrote: '" + text + "'");
    client.revoke(lease.id);
  }
}

TEST_CASE("a leader that cannot reach etcd ends its lead by its own clock", "[coordinator]") {
  EtcdServer etcd;
  const auto lead = agent_of(etcd, 2);
  // A request may take a quarter of that time. A loaded machine may need longer, so it is retried.
  REQUIRE(within_patience([&] {
    try {
      return lead->claim("host1");
    } catch (const base::CommError&) {
      return false;
    }
  }));
  etcd.kill();
  CHECK(news_until_lost(*lead).find("the lease of this agent's lead was not renewed for 2.0 s "
                                    "(supervise.dead_after): no member of etcd") != std::string::npos);
  CHECK_FALSE(lead->leads());
  CHECK(message_of<base::CommError>([&] { (void)lead->leader(); }).starts_with("no member of etcd answers"));
}

TEST_CASE("of several members of etcd one that answers is enough", "[coordinator]") {
  const EtcdServer etcd;
  const base::UniqueFd silent = base::listen_at({"127.0.0.1", 0});  // accepts connections and never answers
  run::EtcdClient client({{"127.0.0.1", base::local_port(silent.get())}, {"127.0.0.1", 1}, etcd.endpoint()},
                         0.5);
  CHECK_FALSE(client.get("/nothing").has_value());
  CHECK(client.own_address() == "127.0.0.1");
  const auto lease = client.grant(60);
  CHECK(lease.ttl_seconds == 60);
  CHECK(client.keep_alive(lease.id) == 60.0);
  const std::string text("\0\x01\xff etcd?", 9);
  CHECK(client.create("/k", text, lease.id).text == text);
  const auto there = client.create("/k", "other", lease.id);
  CHECK((there.text == text && there.lease == lease.id));
  CHECK_FALSE(client.replace("/k", there.create_revision + 1, "new", lease.id));
  CHECK(client.replace("/k", there.create_revision, "new", lease.id));
  CHECK(client.get("/k")->text == "new");
  client.revoke(lease.id);
  client.revoke(lease.id);
  CHECK_FALSE(client.keep_alive(lease.id).has_value());
  CHECK_FALSE(client.get("/k").has_value());
  CHECK(message_of<base::CommError>([&] { client.create("/k", "x", lease.id); }) ==
        "etcd refuses /v3/kv/txn: etcdserver: requested lease not found");
}

TEST_CASE("the address of a coordinator is read, and unsupported parts are named", "[coordinator]") {
  const auto problem = [](const std::string& url) { return spec::parse_etcd_url(url).problem; };
  const spec::EtcdUrl url = spec::parse_etcd_url("etcd://a:2379,[fd00::1]:2380/");
  REQUIRE(url.problem.empty());
  REQUIRE(url.endpoints.size() == 2);
  CHECK((url.endpoints[0].host == "a" && url.endpoints[0].port == 2379));
  CHECK((url.endpoints[1].host == "fd00::1" && url.endpoints[1].port == 2380));
  CHECK(problem("https://a:2379") ==
        "TLS to etcd is not supported: expected etcd://host:port[,host:port...], got 'https://a:2379'");
  CHECK(problem("a:2379") == "expected etcd://host:port[,host:port...], got 'a:2379'");
  CHECK(problem("etcd://me:secret@a:2379") ==
        "a user and password for etcd are not supported: expected etcd://host:port[,host:port...]");
  CHECK(problem("etcd://a:2379,b") ==
        "'b' is no host:port with a port of 1 to 65535: expected etcd://host:port[,host:port...], got "
        "'etcd://a:2379,b'");
  CHECK_FALSE(problem("etcd://").empty());
  CHECK_FALSE(problem("etcd://a:2379,").empty());
  CHECK_FALSE(problem("etcd://a:2379/path").empty());
}

TEST_CASE("the next leader takes over the output directory from a leader that still holds it",
          "[coordinator]") {
  const test::TempDir dir;
  const std::string path = dir / "out";
  const auto kept = run::OutputDirectory::Earlier::kept;
  const LeadMark first{"a-run", 7}, second{"a-run", 9};
  CHECK(LeadMark::parse(first.text())->epoch == 7);
  CHECK_FALSE(LeadMark::parse("4f3a").has_value());
  CHECK_FALSE(LeadMark::parse(first.text() + " x").has_value());
  const run::OutputDirectory old(path, kept, first);
  test::write_file(old.steps(), "1\n");
  const base::UniqueFd open = base::open_append(old.steps());
  const std::string used = "another run is using " + path;
  // A run without a lead, another run, and an older lead cannot take it over.
  CHECK(message_of<base::SpecError>([&] { run::OutputDirectory other(path); }).starts_with(used));
  for (const LeadMark& mark : {LeadMark{"b-run", 9}, LeadMark{"a-run", 7}})
    CHECK(
        message_of<base::SpecError>([&] { run::OutputDirectory other(path, kept, mark); }).starts_with(used));

  const auto older = [&] { run::OutputDirectory other(path, kept, LeadMark{"a-run", 6}); };
  CHECK(message_of<run::LeadLost>(older) ==
        "this agent does not lead the run any more: a later leader (7) has the output directory " + path);
  old.require_mark(first);

  const run::OutputDirectory next(path, kept, second);
  CHECK_THROWS_AS(old.require_mark(first), run::LeadLost);
  next.require_mark(second);
  // A follower of the old leader fails at once: its mark does not come back.
  CHECK_THROWS_AS(run::OutputDirectory::marked(path, first.text(), 60), run::LeadLost);
  CHECK(test::read_file(path + "/.lock") == second.text());
  CHECK(message_of<base::SpecError>([&] { run::OutputDirectory other(path); }).starts_with(used));
  // Late writes of the old leader do not reach the log.
  const std::string late = "late\n";
  REQUIRE(base::write_all(open.get(), std::as_bytes(std::span(late))) == 0);
  CHECK(test::read_file(next.steps()) == "1\n");
}

TEST_CASE("a mark that an earlier leader has left takes no directory from a run that has none",
          "[coordinator]") {
  const test::TempDir dir;
  const std::string path = dir / "out";
  const auto kept = run::OutputDirectory::Earlier::kept;
  { const run::OutputDirectory ended(path, kept, LeadMark{"a-run", 7}); }
  {
    // An etcd that lost its data restarts its epochs: a lower one is accepted.
    const run::OutputDirectory again(path, kept, LeadMark{"a-run", 2});
    again.require_mark({"a-run", 2});
  }
  const run::OutputDirectory alone(path);
  CHECK(test::read_file(path + "/.lock").empty());
  CHECK(message_of<base::SpecError>([&] {
          run::OutputDirectory other(path, kept, LeadMark{"a-run", 9});
        }).starts_with("another run is using " + path));
}

TEST_CASE("an agent that does not lead any more changes nothing in a store", "[coordinator]") {
  const test::TempDir dir;
  const io::CheckpointStore plain(dir / "checkpoints", 1);
  plain.storage()->make_folder("step-00000005");
  bool leads = true;
  const io::CheckpointStore store(std::make_shared<run::GuardedStorage>(plain.storage(),
                                                                        [&] {
                                                                          if (!leads)
                                                                            throw run::LeadLost("no");
                                                                        }),
                                  {.keep = 1});
  leads = false;
  CHECK_THROWS_AS(store.collect_partial(), run::LeadLost);
  CHECK_THROWS_AS(store.discard(5, 1), run::LeadLost);
  CHECK_THROWS_AS(store.write_shards(6, 1, 0, {}), run::LeadLost);
  CHECK(plain.storage()->list("") == std::vector<std::string>{"step-00000005"});
  leads = true;
  CHECK(store.collect_partial().empty());
  CHECK(plain.storage()->list("").empty());
}

TEST_CASE("sinks get nothing from a leader whose lease has expired", "[coordinator]") {
  struct Counting final : io::MetricsSink {
    explicit Counting(int& c) : count(c) {}
    void on_step(const io::StepRecord&) override { ++count; }
    void on_finish(const io::RunSummary&) override { ++count; }
    int& count;
  };
  int count = 0;
  bool leads = true;
  run::RunSinks sinks;
  sinks.add(std::make_unique<Counting>(count));
  sinks.write_while([&] { return leads; });
  sinks.each(&io::MetricsSink::on_step, io::StepRecord{});
  CHECK(count == 1);
  leads = false;
  sinks.each(&io::MetricsSink::on_step, io::StepRecord{});
  sinks.finish({});
  CHECK(count == 1);
}

namespace {

/// A server that is no etcd: answers each request with the same status and body.
class FalseEtcd {
 public:
  explicit FalseEtcd(std::string body, std::string status = "200 OK")
      : body_(std::move(body)), status_(std::move(status)), thread_([this] { serve(); }) {}
  ~FalseEtcd() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  base::Endpoint endpoint() const { return {"127.0.0.1", base::local_port(listener_.get())}; }

 private:
  /// True if the header and a body of Content-Length bytes have arrived.
  static bool is_whole(const std::string& request) {
    const std::size_t header = request.find("\r\n\r\n"), length = request.find("Content-Length: ");
    if (header == std::string::npos) return false;
    return length > header || request.size() >= header + 4 + std::stoul(request.substr(length + 16));
  }
  void serve() {
    for (;;) {
      // The listener does not block. Its shutdown wakes the poll without a connection to accept.
      pollfd next{listener_.get(), POLLIN, 0};
      ::poll(&next, 1, -1);
      const base::UniqueFd fd(::accept(listener_.get(), nullptr, nullptr));
      if (!fd && errno == EAGAIN) continue;
      if (!fd) return;
      std::array<char, 4096> part;
      std::string request;
      while (!is_whole(request)) {
        const ssize_t n = ::recv(fd.get(), part.data(), part.size(), 0);
        if (n <= 0) break;
        request.append(part.data(), static_cast<std::size_t>(n));
      }
      const std::string answer = "HTTP/1.1 " + status_ +
                                 "\r\nConnection: close\r\nContent-Length: " + std::to_string(body_.size()) +
                                 "\r\n\r\n" + body_;
      (void)!::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  const std::string body_, status_;
  const base::UniqueFd listener_ = base::listen_at({"127.0.0.1", 0});
  std::thread thread_;
};

}  // namespace

TEST_CASE("a server that is no etcd is reported with its answer", "[coordinator]") {
  const auto said = [](const std::string& body, auto ask) {
    const FalseEtcd server(body);
    run::EtcdClient client({server.endpoint()}, 5);
    const std::string member = server.endpoint().text();
    std::string message = message_of<base::CommError>([&] { ask(client); });
    if (const auto at = message.find(member); at != std::string::npos)
      message.replace(at, member.size(), "MEMBER");
    return message;
  };
  CHECK(said("{}", [](run::EtcdClient& c) { c.grant(60); }) == "etcd grants no lease: {}");
  CHECK(said("{}", [](run::EtcdClient& c) { c.keep_alive("7"); }) == "etcd does not renew a lease: {}");
  CHECK(said("{}", [](run::EtcdClient& c) { c.create("/k", "x", "7"); }) ==
        "etcd does not say who has /k: {}");
  CHECK(said("<html>", [](run::EtcdClient& c) { c.get("/k"); }) ==
        "no member of etcd answers (MEMBER: status 200, which is no answer of etcd 3.4)");
  run::EtcdClient none({{"127.0.0.1", 1}}, 1);
  CHECK_THAT(message_of<base::CommError>([&] { none.own_address(); }),
             Catch::StartsWith("no member of etcd can be reached (127.0.0.1:1: "));
}

TEST_CASE("an error of etcd on revoking a lease is reported, except that the lease is gone",
          "[coordinator]") {
  const auto revoke = [](const std::string& body, const std::string& status) {
    const FalseEtcd server(body, status);
    run::EtcdClient client({server.endpoint()}, 5);
    return message_of<base::CommError>([&] { client.revoke("7"); });
  };
  CHECK(revoke(R"({"error": "etcdserver: permission denied", "code": 7})", "403 Forbidden") ==
        "etcd refuses to revoke a lease: etcdserver: permission denied");
  CHECK(revoke(R"({"error": "etcdserver: requested lease not found", "code": 5})", "404 Not Found").empty());
}
