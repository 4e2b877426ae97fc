#include "io/s3/settings.h"

#include <cerrno>
#include <cstddef>
#include <span>
#include <sstream>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {
namespace {

std::string trimmed_line(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r"), last = text.find_last_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

bool is_true(const std::string& word) { return word == "true" || word == "True" || word == "1"; }

std::string checked_endpoint(std::string url) {
  const bool http = url.starts_with("http://") || url.starts_with("https://");
  if (!http || url.find_first_of(" ?#@", 8) != std::string::npos || url.size() <= 8)
    throw base::spec_error("AWS_ENDPOINT_URL: expected http://host:port or https://host:port, got '" + url +
                           "'");
  while (url.ends_with('/')) url.pop_back();
  return url;
}

}  // namespace

std::string text_if_there(const std::string& path) {
  if (path.empty()) return "";
  const base::UniqueFd fd = base::open_read(path);
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return "";
  const std::int64_t bytes = fd ? base::file_bytes(fd.get()) : -1;
  std::string text(static_cast<std::size_t>(bytes < 0 ? 0 : bytes), '\0');
  if (bytes < 0 || base::read_at(fd.get(), std::as_writable_bytes(std::span(text)), 0) != bytes)
    throw base::spec_error(path + ": cannot be read: " + base::errno_text(errno));
  return text;
}

std::optional<std::map<std::string, std::string>> profile_values(const std::string& text,
                                                                 const std::string& profile) {
  std::optional<std::map<std::string, std::string>> values;
  bool inside = false;
  std::string above;  // key that the indented lines belong to
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string content = trimmed_line(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    if (content.front() == '[') {
      const std::string name = trimmed_line(content.substr(1, content.find(']') - 1));
      inside = name == profile ||
               (name.starts_with("profile") && trimmed_line(name.substr(7)) == profile && name != "profile");
      if (inside && !values) values.emplace();
      above.clear();
      continue;
    }
    const std::size_t equals = content.find('=');
    if (!inside || equals == std::string::npos) continue;
    std::string key = trimmed_line(content.substr(0, equals));
    std::string value = trimmed_line(content.substr(equals + 1));
    const bool indented = line.front() == ' ' || line.front() == '\t';
    if (indented && !above.empty()) key = above + "." + key;
    else above = value.empty() ? key : "";
    (*values)[key] = std::move(value);
  }
  return values;
}

S3Settings s3_settings(const Variable& variable) {
  const auto value = [&](const char* name) { return variable(name).value_or(""); };
  S3Settings settings;
  CredentialSources& c = settings.credentials;
  const std::string access_key = value("AWS_ACCESS_KEY_ID"), secret_key = value("AWS_SECRET_ACCESS_KEY");
  if (access_key.empty() != secret_key.empty())
    throw base::spec_error(
        "the environment has one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY without the other: set both, "
        "or neither");
  if (!access_key.empty()) c.environment = AwsCredentials{access_key, secret_key, value("AWS_SESSION_TOKEN")};
  if (const std::string profile = value("AWS_PROFILE"); !profile.empty()) c.profile = profile;
  const std::string home = value("HOME");
  const auto file = [&](const char* name, const char* in_home) {
    const std::string given = value(name);
    return given.empty() && !home.empty() ? home + in_home : given;
  };
  c.credentials_file = file("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials");
  c.config_file = file("AWS_CONFIG_FILE", "/.aws/config");
  if (const std::string path = value("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); !path.empty())
    c.container_url = "http://169.254.170.2" + path;
  else c.container_url = value("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  c.container_token = value("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  c.container_token_file = value("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!is_true(value("AWS_EC2_METADATA_DISABLED"))) {
    c.instance_url = value("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    if (c.instance_url.empty()) c.instance_url = "http://169.254.169.254";
    while (c.instance_url.ends_with('/')) c.instance_url.pop_back();
  }
  if (!value("AWS_PROFILE").empty() && !c.environment &&
      !profile_values(text_if_there(c.credentials_file), c.profile) &&
      !profile_values(text_if_there(c.config_file), c.profile))
    throw base::spec_error("AWS_PROFILE: there is no profile " + c.profile + " in " + c.credentials_file +
                           " or " + c.config_file);
  const auto profile =
      profile_values(text_if_there(c.config_file), c.profile).value_or(std::map<std::string, std::string>{});
  const auto first = [&](std::initializer_list<const char*> names, const char* key) {
    for (const char* name : names)
      if (std::string given = value(name); !given.empty()) return given;
    const auto found = profile.find(key);
    return found == profile.end() ? std::string() : found->second;
  };
  if (const std::string region = first({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region"); !region.empty())
    settings.region = region;
  if (const std::string url = first({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "endpoint_url");
      !url.empty())
    settings.endpoint = checked_endpoint(url);
  const std::string style = first({}, "s3.addressing_style");
  if (style == "path") settings.addressing = S3Addressing::path;
  if (style == "virtual") settings.addressing = S3Addressing::virtual_host;
  return settings;
}

}  // namespace trainerd::io
