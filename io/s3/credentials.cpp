#include "io/s3/credentials.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <utility>

#include "io/text/json.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

using std::chrono::system_clock;

// AWS provides new ones at least 5 minutes before the old ones expire.
constexpr std::chrono::minutes kBeforeEnd{5};
// Credentials with a shorter life are used until shortly before they expire.
constexpr std::chrono::seconds kMinLifetime{10};
constexpr double kContainerSeconds = 5;
constexpr int kTries = 3;

bool is_due(const AwsCredentials& credentials, std::chrono::system_clock::duration before) {
  return credentials.expires && *credentials.expires - system_clock::now() < before;
}

// Parses the reply of a container endpoint or of EC2's metadata service.
AwsCredentials parsed(const std::string& body, const std::string& from) {
  try {
    const nlohmann::json j = parse_json(body);
    return {.access_key = string_member(j, "AccessKeyId"),
            .secret_key = string_member(j, "SecretAccessKey"),
            .session_token = string_member(j, "Token"),
            .expires = parse_utc(string_member(j, "Expiration"))};
  } catch (const JsonError& error) {
    throw base::spec_error(from + ": its reply holds no credentials: " + error.what());
  }
}

std::string first_line(const std::string& text) { return text.substr(0, text.find_first_of("\r\n")); }

}  // namespace

std::chrono::system_clock::time_point parse_utc(const std::string& text) {
  tm parts{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr || (*end != 'Z' && *end != '.' && *end != '\0' && *end != '+'))
    throw base::spec_error("'" + text + "' is no time when credentials expire");
  return system_clock::from_time_t(::timegm(&parts));
}

HttpResponse Credentials::ask(const std::string& url, const std::string& method, const std::string& header) {
  HttpRequest request{.url = url, .seconds = kContainerSeconds};
  if (!header.empty()) request.headers.push_back(header);
  request.method = method;
  std::string why;
  for (int i = 0; i < kTries; ++i) {
    if (const auto reply = http_.send(request, why); !reply || reply->status >= 500)
      why = reply ? "status " + std::to_string(reply->status) : why;
    else if (reply->status == 200) return *reply;
    else
      throw base::spec_error(url + ": gives no credentials: status " + std::to_string(reply->status) + " " +
                             first_line(reply->body));
  }
  throw base::spec_error(url + ": gives no credentials: " + why);
}

std::optional<AwsCredentials> Credentials::of_profile() const {
  for (const std::string* path : {&sources_.credentials_file, &sources_.config_file}) {
    const auto values = profile_values(text_if_there(*path), sources_.profile);
    if (!values) continue;
    const auto value = [&](const char* key) {
      const auto found = values->find(key);
      return found == values->end() ? std::string() : found->second;
    };
    const std::string access_key = value("aws_access_key_id"), secret_key = value("aws_secret_access_key");
    if (!access_key.empty() && !secret_key.empty())
      return AwsCredentials{access_key, secret_key, value("aws_session_token")};
    for (const char* other : {"role_arn", "credential_process", "sso_session", "sso_start_url"})
      if (values->contains(other))
        throw base::spec_error(*path + ": the profile " + sources_.profile + " has " + other +
                               ", which this program does not follow: put its credentials into the "
                               "environment (aws configure export-credentials --format env)");
    if (!access_key.empty() || !secret_key.empty())
      throw base::spec_error(*path + ": the profile " + sources_.profile +
                             " has one of aws_access_key_id and aws_secret_access_key without the other");
  }
  return std::nullopt;
}

AwsCredentials Credentials::of_container() {
  std::string token = sources_.container_token;
  if (!sources_.container_token_file.empty()) {
    token = first_line(text_if_there(sources_.container_token_file));
    if (token.empty())
      throw base::spec_error(sources_.container_token_file +
                             ": AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names it, and it holds no token");
  }
  const HttpResponse reply = ask(sources_.container_url, "", token.empty() ? "" : "Authorization: " + token);
  return parsed(reply.body, sources_.container_url);
}

// Uses a session token, as version 2 of the metadata service requires.
std::optional<AwsCredentials> Credentials::of_instance() {
  const std::string root = sources_.instance_url + "/latest/";
  HttpRequest request{.url = root + "api/token",
                      .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 300"},
                      .seconds = sources_.instance_seconds};
  request.method = "PUT";
  std::string why;
  const auto token = http_.send(request, why);
  if (!token || token->status != 200) return std::nullopt;
  const std::string header = "X-aws-ec2-metadata-token: " + token->body;
  const std::string roles = root + "meta-data/iam/security-credentials/";
  const std::string role = first_line(ask(roles, "", header).body);
  if (role.empty()) return std::nullopt;
  return parsed(ask(roles + role, "", header).body, roles + role);
}

AwsCredentials Credentials::find() {
  if (sources_.environment) return *sources_.environment;
  if (auto found = of_profile()) return *std::move(found);
  if (!sources_.container_url.empty()) return of_container();
  if (!sources_.instance_url.empty())
    if (auto found = of_instance()) return *std::move(found);
  throw base::spec_error(
      "there are no credentials for s3://: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, the "
      "profile " +
      sources_.profile + " has none (" + sources_.credentials_file + ", " + sources_.config_file + "), " +
      (sources_.instance_url.empty() ? "and no container endpoint is set"
                                     : "no container endpoint is set, and " + sources_.instance_url +
                                           " does not give those of an instance's role") +
      ": set one of them");
}

AwsCredentials Credentials::get() {
  const std::lock_guard lock(mutex_);
  if (known_ && !is_due(*known_, kBeforeEnd)) return *known_;
  if (!known_) return *(known_ = find());
  // A source may return the same ones until shortly before they expire, so it is not asked for every request.
  const double now = base::monotonic_seconds();
  const auto left = *known_->expires - system_clock::now();
  const double pause = std::clamp(std::chrono::duration<double>(left).count() / 10, 0.5, 30.0);
  if (now - tried_at_ < pause && left > std::chrono::seconds(0)) return *known_;
  tried_at_ = now;
  try {
    AwsCredentials fresh = find();
    if (fresh != *known_) ++renewals_;
    known_ = std::move(fresh);
  } catch (const base::SpecError&) {
    if (is_due(*known_, kMinLifetime)) throw;  // until then the old ones are valid
  }
  return *known_;
}

bool Credentials::renew(const AwsCredentials& used) {
  const std::lock_guard lock(mutex_);
  if (known_ && *known_ != used) return true;  // another thread has renewed them
  AwsCredentials fresh = find();
  if (fresh == used) return false;
  ++renewals_;
  known_ = std::move(fresh);
  return true;
}

}  // namespace trainerd::io
