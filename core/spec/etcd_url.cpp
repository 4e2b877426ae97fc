#include "core/spec/etcd_url.h"

#include <algorithm>
#include <string_view>

namespace trainerd::core::spec {

EtcdUrl parse_etcd_url(const std::string& text) {
  constexpr std::string_view kScheme = "etcd://";
  const std::string form = "expected etcd://host:port[,host:port...], got '" + text + "'";
  if (text.starts_with("https://") || text.starts_with("etcds://"))
    return {{}, "TLS to etcd is not supported: " + form};
  if (!text.starts_with(kScheme)) return {{}, form};
  if (text.find('@') != std::string::npos)
    return {{}, "a user and password for etcd are not supported: expected etcd://host:port[,host:port...]"};
  EtcdUrl url;
  for (std::size_t begin = kScheme.size(); begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string one = text.substr(begin, end - begin);
    if (end == text.size() && one.ends_with('/')) one.pop_back();
    const auto endpoint = base::parse_endpoint(one);
    if (!endpoint) return {{}, "'" + one + "' is no host:port with a port of 1 to 65535: " + form};
    url.endpoints.push_back(*endpoint);
    begin = end + 1;
  }
  return url;
}

}  // namespace trainerd::core::spec
