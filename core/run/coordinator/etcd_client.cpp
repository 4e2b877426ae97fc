#include "core/run/coordinator/etcd_client.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "io/http/http_client.h"
#include "kernels/base/clock.h"

namespace trainerd::core::run {
namespace {

using nlohmann::json;

// No member is asked with a shorter timeout.
constexpr double kMinSeconds = 0.01;
constexpr double kAnyTime = 1e9;

// gRPC status codes (https://grpc.io/docs/guides/status-codes), as the gateway reports them.
constexpr int kDeadlineExceeded = 4, kNotFound = 5, kUnavailable = 14;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// As in RFC 4648, section 4.
std::string base64(std::string_view text) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) out += kDigits[bits >> (count - 6) & 63];
  }
  if (count > 0) out += kDigits[bits << (6 - count) & 63];
  while (out.size() % 4 != 0) out += '=';
  return out;
}

std::string from_base64(std::string_view text) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) break;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 255);
  }
  return out;
}

/// Text of a field. The gateway sends 64-bit numbers as strings and leaves out zeros and empty strings.
std::string text_at(const json& j, const char* key) {
  const auto at = j.find(key);
  return at != j.end() && at->is_string() ? at->get<std::string>() : "";
}

std::int64_t number_at(const json& j, const char* key) {
  return std::strtoll(text_at(j, key).c_str(), nullptr, 10);
}

EtcdClient::Value value_in(const json& kv) {
  const std::string lease = text_at(kv, "lease");
  return {from_base64(text_at(kv, "value")), lease, number_at(kv, "create_revision")};
}

json put_of(const std::string& key, const std::string& text, const std::string& lease) {
  return {{"requestPut", {{"key", base64(key)}, {"value", base64(text)}, {"lease", lease}}}};
}

/// Condition that the key was created at this revision; 0: that it does not exist.
json created_at(const std::string& key, std::int64_t revision) {
  return {{"key", base64(key)}, {"target", "CREATE"}, {"createRevision", std::to_string(revision)}};
}

/// An error reported by etcd.
struct Refusal {
  int code = 0;
  std::string text;
};

}  // namespace

struct EtcdClient::State {
  State(std::vector<base::Endpoint> m, double s) : members(std::move(m)), seconds(s) {}

  std::vector<base::Endpoint> members;
  double seconds;
  std::size_t answered = 0;  ///< the member that answered last
  io::HttpClient http;

  json ask(const std::string& path, const json& body, std::optional<Refusal>& refusal,
           double within_seconds = kAnyTime);
  json ask(const std::string& path, const json& body, double within_seconds = kAnyTime);
};

/// Sends the request to the members in turn. Returns the answer, or sets `refusal` to etcd's error.
json EtcdClient::State::ask(const std::string& path, const json& body, std::optional<Refusal>& refusal,
                            double within_seconds) {
  const double end = base::monotonic_seconds() + within_seconds;
  std::string problems;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const double left = end - base::monotonic_seconds();
    if (i > 0 && left <= 0) break;
    const std::size_t member = (answered + i) % members.size();
    std::string why;
    const auto response = http.send({.url = "http://" + members[member].text() + path,
                                     .body = body.dump(),
                                     .headers = {"Content-Type: application/json"},
                                     .seconds = std::clamp(left, kMinSeconds, seconds)},
                                    why);
    if (response) {
      const json answer = json::parse(response->body, nullptr, false);
      if (response->status == 200 && answer.is_object()) {
        answered = member;
        return answer;
      }
      const auto said = answer.find("code");
      const int code = said != answer.end() && said->is_number_integer() ? said->get<int>() : 0;
      why = answer.is_object() ? text_at(answer, "error") : "";
      if (why.empty())
        why = "status " + std::to_string(response->status) + ", which is no answer of etcd 3.4";
      // A member without a majority reports one of these codes; another member may have the majority.
      if (code != 0 && code != kUnavailable && code != kDeadlineExceeded) {
        answered = member;
        refusal = Refusal{code, why};
        return {};
      }
    }
    problems += (problems.empty() ? "" : "; ") + members[member].text() + ": " + why;
  }
  throw base::comm_error("no member of etcd answers (" + problems + ")");
}

json EtcdClient::State::ask(const std::string& path, const json& body, double within_seconds) {
  std::optional<Refusal> refusal;
  json answer = ask(path, body, refusal, within_seconds);
  if (refusal) throw base::comm_error("etcd refuses " + path + ": " + refusal->text);
  return answer;
}

EtcdClient::EtcdClient(std::vector<base::Endpoint> members, double seconds)
    : state_(std::make_unique<State>(std::move(members), seconds)) {}

EtcdClient::~EtcdClient() = default;

EtcdClient::Lease EtcdClient::grant(std::int64_t ttl_seconds) {
  const json answer = state_->ask("/v3/lease/grant", {{"TTL", std::to_string(ttl_seconds)}});
  const Lease lease{text_at(answer, "ID"), static_cast<double>(number_at(answer, "TTL"))};
  if (lease.id.empty() || lease.ttl_seconds <= 0)
    throw base::comm_error("etcd grants no lease: " + answer.dump());
  return lease;
}

std::optional<double> EtcdClient::keep_alive(const std::string& lease, double within_seconds) {
  const json answer = state_->ask("/v3/lease/keepalive", {{"ID", lease}}, within_seconds);
  const auto result = answer.find("result");
  if (result == answer.end()) throw base::comm_error("etcd does not renew a lease: " + answer.dump());
  const std::int64_t seconds = number_at(*result, "TTL");
  if (seconds <= 0) return std::nullopt;
  return static_cast<double>(seconds);
}

void EtcdClient::revoke(const std::string& lease) {
  std::optional<Refusal> refusal;
  state_->ask("/v3/lease/revoke", {{"ID", lease}}, refusal);
  if (refusal && refusal->code != kNotFound)
    throw base::comm_error("etcd refuses to revoke a lease: " + refusal->text);
}

std::optional<EtcdClient::Value> EtcdClient::get(const std::string& key) {
  const json answer = state_->ask("/v3/kv/range", {{"key", base64(key)}});
  const auto values = answer.find("kvs");
  if (values == answer.end() || values->empty()) return std::nullopt;
  return value_in(values->front());
}

EtcdClient::Value EtcdClient::create(const std::string& key, const std::string& text,
                                     const std::string& lease) {
  const json range{{"requestRange", {{"key", base64(key)}}}};
  const json answer = state_->ask("/v3/kv/txn", {{"compare", json::array({created_at(key, 0)})},
                                                 {"success", json::array({put_of(key, text, lease), range})},
                                                 {"failure", json::array({range})}});
  const auto responses = answer.find("responses");
  if (responses != answer.end())
    for (const json& response : *responses)
      if (const auto found = response.find("response_range"); found != response.end())
        if (const auto values = found->find("kvs"); values != found->end() && !values->empty())
          return value_in(values->front());
  throw base::comm_error("etcd does not say who has " + key + ": " + answer.dump());
}

bool EtcdClient::replace(const std::string& key, std::int64_t create_revision, const std::string& text,
                         const std::string& lease) {
  const json answer = state_->ask("/v3/kv/txn", {{"compare", json::array({created_at(key, create_revision)})},
                                                 {"success", json::array({put_of(key, text, lease)})}});
  const auto succeeded = answer.find("succeeded");
  return succeeded != answer.end() && succeeded->is_boolean() && succeeded->get<bool>();
}

std::string EtcdClient::own_address() {
  std::string problems, on_this_host;
  for (const base::Endpoint& member : state_->members) {
    std::string why;
    if (const base::UniqueFd socket = base::try_connect(member, state_->seconds, why)) {
      const std::string address = base::local_address(socket.get());
      if (!base::is_loopback(address)) return address;
      on_this_host = address;
    }
    problems += (problems.empty() ? "" : "; ") + member.text() + ": " + why;
  }
  if (!on_this_host.empty()) return on_this_host;
  throw base::comm_error("no member of etcd can be reached (" + problems + ")");
}

void EtcdClient::abort() { state_->http.abort(); }

}  // namespace trainerd::core::run
