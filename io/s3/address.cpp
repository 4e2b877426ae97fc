#include "io/s3/address.h"

#include <algorithm>
#include <string_view>

namespace trainerd::io {
namespace {

bool is_label(const std::string& bucket) {
  return std::all_of(bucket.begin(), bucket.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

}  // namespace

Address address_of(const S3Settings& settings, const std::string& bucket) {
  const bool own = settings.endpoint.empty();
  const std::string endpoint = own ? "https://s3." + settings.region + ".amazonaws.com" +
                                         (settings.region.starts_with("cn-") ? ".cn" : "")
                                   : settings.endpoint;
  const std::size_t after = endpoint.find("://") + 3,
                    slash = std::min(endpoint.find('/', after), endpoint.size());
  Address address{endpoint.substr(0, after), endpoint.substr(after, slash - after), endpoint.substr(slash)};
  // The default port of the scheme does not appear in requests.
  const std::string_view usual = address.scheme == "http://" ? ":80" : ":443";
  if (address.host.ends_with(usual)) address.host.resize(address.host.size() - usual.size());
  const bool in_path = settings.addressing == S3Addressing::path ||
                       (settings.addressing == S3Addressing::automatic && (!own || !is_label(bucket)));
  if (in_path) address.path += "/" + bucket;
  else address.host = bucket + "." + address.host;
  return address;
}

}  // namespace trainerd::io
