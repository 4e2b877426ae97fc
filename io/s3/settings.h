#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace trainerd::io {

struct AwsCredentials {
  std::string access_key, secret_key;
  std::string session_token = {};  ///< of credentials that are temporary
  std::optional<std::chrono::system_clock::time_point> expires = {};

  bool operator==(const AwsCredentials&) const = default;
};

/// Where credentials come from, in the order in which they are looked for.
struct CredentialSources {
  std::optional<AwsCredentials> environment = {};
  std::string profile = "default";
  std::string credentials_file = {}, config_file = {};  ///< empty: there is none
  std::string container_url = {};                       ///< of ECS, EKS or their like; empty: there is none
  std::string container_token = {};                     ///< the header Authorization of its requests
  std::string container_token_file = {};                ///< read at each request, in place of that
  std::string instance_url = {};                        ///< of EC2's metadata service; empty: not asked
  double instance_seconds = 2;                          ///< that service is there at once, or not at all
};

enum class S3Addressing : unsigned char { automatic, path, virtual_host };

/// How an object store is reached.
struct S3Settings {
  std::string endpoint = {};  ///< "http://127.0.0.1:9000"; empty: Amazon's, of the region
  std::string region = "us-east-1";
  /// automatic: the bucket is a part of the path at an endpoint of one's own, and where it is no name of a
  /// host; else of the host's name.
  S3Addressing addressing = S3Addressing::automatic;
  CredentialSources credentials = {};
  double request_seconds = 60;  ///< of one try
  double stall_seconds = 10;    ///< a try fails when no byte comes for so long
  /// A failing request is tried again for so long. Where no request has succeeded yet, the address may be
  /// wrong: `first_seconds` then.
  double give_up_seconds = 300, first_seconds = 15;
};

/// An environment variable's value; none when it is not set.
using Variable = std::function<std::optional<std::string>(const std::string& name)>;

/// How the store is reached; called where a path names an object.
using FindS3 = std::function<S3Settings()>;

/// As AWS's own tools find them: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION,
/// AWS_PROFILE, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_SHARED_CREDENTIALS_FILE,
/// AWS_CONFIG_FILE, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, ..._FULL_URI, AWS_CONTAINER_AUTHORIZATION_TOKEN,
/// ..._TOKEN_FILE, AWS_EC2_METADATA_DISABLED, AWS_EC2_METADATA_SERVICE_ENDPOINT, HOME, and of the profile in
/// the config file `region`, `endpoint_url` and `addressing_style` below `s3`. Throws SpecError: one of the
/// keys without the other, an endpoint that is no URL.
S3Settings s3_settings(const Variable& variable);

/// The values of one profile in the text of a credentials file (`[NAME]`) or config file (`[profile NAME]`);
/// those below an indented key as "s3.addressing_style". None: there is no such profile.
std::optional<std::map<std::string, std::string>> profile_values(const std::string& text,
                                                                 const std::string& profile);

/// The text of a file; empty where there is none. Throws SpecError where it cannot be read.
std::string text_if_there(const std::string& path);

}  // namespace trainerd::io
