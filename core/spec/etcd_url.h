#pragma once

#include <string>
#include <vector>

#include "kernels/base/socket.h"

namespace trainerd::core::spec {

/// The parsed value of `supervise.coordinator`.
struct EtcdUrl {
  std::vector<base::Endpoint> endpoints;
  std::string problem;  ///< what is wrong with it; empty: nothing
};

/// Reads "etcd://host:port[,host:port...]".
EtcdUrl parse_etcd_url(const std::string& text);

}  // namespace trainerd::core::spec
