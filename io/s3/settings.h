#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace trainerd::io {

struct AwsCredentials {
  std::string access_key, secret_key;
  std::string session_token = {};  ///< for temporary credentials
  std::optional<std::chrono::system_clock::time_point> expires = {};

  bool operator==(const AwsCredentials&) const = default;
};

/// Sources of credentials, in order of priority.
struct CredentialSources {
  std::optional<AwsCredentials> environment = {};
  std::string profile = "default";
  std::string credentials_file = {}, config_file = {};  ///< empty: no such file
  std::string container_url = {};                       ///< endpoint of ECS, EKS or similar; empty: none
  std::string container_token = {};       ///< value of the Authorization header for that endpoint
  std::string container_token_file = {};  ///< used instead of container_token; read for each request
  std::string instance_url = {};          ///< EC2's metadata service; empty: not used
  double instance_seconds = 2;            ///< timeout; that service answers at once or not at all
};

enum class S3Addressing : unsigned char { automatic, path, virtual_host };

/// How to reach an object store.
struct S3Settings {
  std::string endpoint = {};  ///< "http://127.0.0.1:9000"; empty: Amazon's endpoint of the region
  std::string region = "us-east-1";
  /// automatic: the bucket is part of the path for a custom endpoint and for a bucket name that is not a
  /// valid host name; else part of the host name.
  S3Addressing addressing = S3Addressing::automatic;
  CredentialSources credentials = {};
  double request_seconds = 60;  ///< per attempt
  double stall_seconds = 10;    ///< an attempt fails after that long without a byte
  /// Time after which retries stop. `first_seconds` applies until the first request succeeds, because the
  /// address may be wrong.
  double give_up_seconds = 300, first_seconds = 15;
};

/// Returns the value of an environment variable; none if it is not set.
using Variable = std::function<std::optional<std::string>(const std::string& name)>;

/// Returns how to reach the store. Called when a path names an object.
using FindS3 = std::function<S3Settings()>;

/// Reads the settings as AWS's own tools do, from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION,
/// AWS_DEFAULT_REGION, AWS_PROFILE, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
/// AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, ..._FULL_URI,
/// AWS_CONTAINER_AUTHORIZATION_TOKEN, ..._TOKEN_FILE, AWS_EC2_METADATA_DISABLED,
/// AWS_EC2_METADATA_SERVICE_ENDPOINT, HOME, and from the profile in the config file: `region`,
/// `endpoint_url`, `addressing_style` below `s3`. Throws SpecError for one key without the other or an
/// endpoint that is not a URL.
S3Settings s3_settings(const Variable& variable);

/// Returns the values of one profile in a credentials file (`[NAME]`) or config file (`[profile NAME]`).
/// Nested values get names like "s3.addressing_style". None if there is no such profile.
std::optional<std::map<std::string, std::string>> profile_values(const std::string& text,
                                                                 const std::string& profile);

/// Returns the text of a file; empty if there is none. Throws SpecError if it cannot be read.
std::string text_if_there(const std::string& path);

}  // namespace trainerd::io
