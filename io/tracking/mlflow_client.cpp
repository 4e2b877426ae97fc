#include "io/tracking/mlflow_client.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <span>
#include <sstream>
#include <string_view>

#include "io/text/json.h"
#include "kernels/base/atomic_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using Json = nlohmann::ordered_json;

// The server's limits per request (MLflow 2 and 3: mlflow/utils/validation.py). For the lengths of values
// these are the smaller limits of older servers.
constexpr std::size_t kMaxMetrics = 1000, kMaxParams = 100, kMaxKey = 250, kMaxParam = 500, kMaxTag = 5000;

std::string cut(std::string text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  text.resize(bytes - 3);
  // Removes a partial character at the end.
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
  if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xc0) text.pop_back();
  return text + "...";
}

Json tag(const std::string& key, const std::string& value) {
  return {{"key", cut(key, kMaxKey)}, {"value", cut(value, kMaxTag)}};
}

std::int64_t milliseconds(double seconds) { return static_cast<std::int64_t>(1e3 * seconds); }

/// Encodes numbers as Protocol Buffers' JSON does.
Json number(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "Infinity" : "-Infinity";
  return x;
}

std::string base64(std::string_view bytes) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = i; k < i + 3; ++k)
      group = group << 8 | (k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? kDigits[(group >> (18 - 6 * k)) & 63] : '=';
  }
  return text;
}

/// Calls `take` for each entry of the list `list` in `object`.
template <class Take>
void each_entry(const nlohmann::json& object, const char* list, const Take& take) {
  const auto entries = object.find(list);
  if (entries == object.end() || !entries->is_array()) return;
  for (const auto& entry : *entries) take(entry);
}

/// Returns the run's id in the file; empty if it is not of a run on that server.
std::string kept_run(const std::string& path, const MlflowOptions& server) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  try {
    const auto kept = parse_json(text.str());
    const bool same =
        string_member(kept, "uri") == server.uri && string_member(kept, "experiment") == server.experiment;
    return same ? string_member(kept, "run_id") : "";
  } catch (const JsonError&) {
    return "";
  }
}

}  // namespace

struct MlflowClient::Answer {
  int status = 0;
  nlohmann::json body;
  std::string code;  ///< "RESOURCE_DOES_NOT_EXIST"
  std::string what;  ///< error message, if it failed

  bool succeeded() const { return status == 200; }
  bool absent() const { return status == 404 && code == "RESOURCE_DOES_NOT_EXIST"; }
  /// Wrong credentials may be corrected on the server.
  bool may_pass() const {
    return status >= 500 || status == 401 || status == 403 || status == 408 || status == 429;
  }
};

MlflowClient::MlflowClient(const MlflowRun& run, double timeout_seconds)
    : server_(run.server), headers_{"Content-Type: application/json"}, timeout_seconds_(timeout_seconds) {
  while (server_.uri.ends_with('/')) server_.uri.pop_back();
  const TrackerCredentials& credentials = run.credentials;
  if (!credentials.token.empty()) headers_.push_back("Authorization: Bearer " + credentials.token);
  else if (!credentials.user.empty())
    headers_.push_back("Authorization: Basic " + base64(credentials.user + ":" + credentials.password));
}

/// Without a body it sends a GET.
MlflowClient::Answer MlflowClient::call(const std::string& path, std::optional<std::string> body) {
  const HttpRequest request{.url = server_.uri + "/api/2.0/mlflow/" + path,
                            .body = std::move(body),
                            .headers = headers_,
                            .seconds = timeout_seconds_};
  std::string why;
  const auto reply = http_.send(request, why);
  if (!reply) throw MlflowError{server_.uri + ": " + why};
  Answer answer{.status = reply->status, .body = {}, .code = {}, .what = {}};
  try {
    answer.body = parse_json(reply->body);
    if (!answer.succeeded()) answer.code = string_member(answer.body, "error_code");
    if (!answer.succeeded()) answer.what = string_member(answer.body, "message");
  } catch (const JsonError& error) {
    // Something else answers there, perhaps temporarily: a proxy, a login page.
    if (answer.succeeded())
      throw MlflowError{server_.uri + " does not answer as MLflow does: " + error.what()};
  }
  answer.what = server_.uri + " answers " + std::to_string(answer.status) + " to " +
                path.substr(0, path.find('?')) + (answer.what.empty() ? "" : ": ") +
                answer.what.substr(0, answer.what.find('\n'));
  return answer;
}

std::string MlflowClient::post(const std::string& path, const std::string& body) {
  const Answer answer = call(path, body);
  if (!answer.succeeded()) throw MlflowError{answer.what, answer.may_pass()};
  return text_of(answer.body);
}

/// Returns none if it does not exist.
std::optional<std::string> MlflowClient::find_experiment() {
  const Answer found =
      call("experiments/get-by-name?experiment_name=" + url_encoded(server_.experiment), std::nullopt);
  if (found.absent()) return std::nullopt;
  if (!found.succeeded()) throw MlflowError{found.what};
  return string_member(member(found.body, "experiment"), "experiment_id");
}

std::string MlflowClient::experiment_id() {
  if (auto found = find_experiment()) return *std::move(found);
  const Answer made = call("experiments/create", to_text(Json{{"name", server_.experiment}}));
  if (made.succeeded()) return string_member(made.body, "experiment_id");
  // Another run created it in the meantime.
  if (made.code == "RESOURCE_ALREADY_EXISTS")
    if (auto found = find_experiment()) return *std::move(found);
  throw MlflowError{made.what};
}

/// Returns false if the server no longer has it.
bool MlflowClient::find_run(const std::string& id) {
  const Answer found = call("runs/get?run_id=" + url_encoded(id), std::nullopt);
  if (found.absent()) return false;
  if (!found.succeeded()) throw MlflowError{found.what};
  const auto& run = member(found.body, "run");
  if (string_member(member(run, "info"), "lifecycle_stage") != "active") return false;
  run_id_ = id;
  const auto& data = member(run, "data");
  each_entry(data, "params", [&](const auto& entry) {
    params_[string_member(entry, "key")] = entry.contains("value") ? string_member(entry, "value") : "";
  });
  each_entry(data, "metrics", [&](const auto& entry) {
    // 64-bit integers may be sent as text, and zeros left out.
    const auto step = entry.find("step");
    std::int64_t last = 0;
    if (step != entry.end())
      last = step->is_string() ? std::stoll(step->template get<std::string>())
                               : step->template get<std::int64_t>();
    last_step_[string_member(entry, "key")] = last;
  });
  post("runs/update", to_text(Json{{"run_id", id}, {"status", "RUNNING"}}));
  return true;
}

void MlflowClient::make_run(const MlflowRun& run) {
  const Json body{{"experiment_id", experiment_id()},
                  {"run_name", run.name},
                  {"start_time", milliseconds(base::wall_seconds())},
                  {"tags", Json::array({tag("mlflow.runName", run.name), tag("mlflow.source.type", "JOB")})}};
  const Answer made = call("runs/create", to_text(body));
  if (!made.succeeded()) throw MlflowError{made.what};
  const std::string id = string_member(member(member(made.body, "run"), "info"), "run_id");
  const std::string text =
      to_text(Json{{"uri", run.server.uri}, {"experiment", run.server.experiment}, {"run_id", id}}, 2) + "\n";
  if (const int error = base::write_file_atomically(run.state_path, std::as_bytes(std::span(text)));
      error != 0)
    throw MlflowError{run.state_path + " cannot be written: " + base::errno_text(error)};
  run_id_ = id;
}

/// A parameter keeps its first value on the server. A different value is logged as a tag.
void MlflowClient::log_params(const MlflowRun& run) {
  Json params = Json::array(), tags = Json::array();
  for (const auto& [key, value] : run.tags) tags.push_back(tag(key, value));
  for (const auto& [key, whole] : run.params) {
    const std::string value = cut(whole, kMaxParam);
    const auto known = params_.find(key);
    if (known == params_.end()) params.push_back({{"key", cut(key, kMaxKey)}, {"value", value}});
    else if (known->second != value) tags.push_back(tag("changed." + key, value));
  }
  for (std::size_t i = 0; i < std::max(params.size(), tags.size()); i += kMaxParams) {
    const auto part = [&](const Json& list) {
      Json taken = Json::array();
      for (std::size_t k = i; k < std::min(list.size(), i + kMaxParams); ++k) taken.push_back(list[k]);
      return taken;
    };
    post("runs/log-batch",
         to_text(Json{{"run_id", run_id_}, {"params", part(params)}, {"tags", part(tags)}}));
  }
}

void MlflowClient::attach(const MlflowRun& run) {
  try {
    const std::string kept = run_id_.empty() ? kept_run(run.state_path, run.server) : run_id_;
    if (kept.empty() || !find_run(kept)) make_run(run);
    log_params(run);
  } catch (const JsonError& error) {
    throw MlflowError{server_.uri + " does not answer as MLflow does: " + error.what()};
  }
}

std::int64_t MlflowClient::last_step(const std::string& metric) const {
  const auto known = last_step_.find(metric);
  return known == last_step_.end() ? 0 : known->second;
}

void MlflowClient::log(const std::vector<MlflowValues>& values) {
  Json metrics = Json::array();
  std::map<std::string, std::int64_t> last = last_step_;
  const auto send = [&] {
    if (metrics.empty()) return;
    post("runs/log-batch", to_text(Json{{"run_id", run_id_}, {"metrics", metrics}}));
    metrics.clear();
    last_step_ = last;
  };
  for (const MlflowValues& record : values) {
    if (metrics.size() + record.values.size() > kMaxMetrics) send();
    for (const auto& [key, value] : record.values) {
      const auto [known, is_new] = last.try_emplace(key, record.step);
      if (!is_new && known->second >= record.step) continue;
      known->second = record.step;
      metrics.push_back({{"key", key},
                         {"value", number(value)},
                         {"timestamp", milliseconds(record.wall_time)},
                         {"step", record.step}});
    }
  }
  send();
}

void MlflowClient::end(const std::string& status) {
  post("runs/update",
       to_text(
           Json{{"run_id", run_id_}, {"status", status}, {"end_time", milliseconds(base::wall_seconds())}}));
}

}  // namespace trainerd::io
