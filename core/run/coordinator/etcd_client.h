#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/socket.h"

namespace trainerd::core::run {

/// Sends requests to etcd 3.4 or later through the JSON gateway that each member serves at its client address
/// (https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway). Tries the members in turn, starting with the one
/// that answered last. All calls throw CommError if no member answers in time, or etcd refuses. For one
/// thread.
class EtcdClient {
 public:
  /// `seconds`: time limit for one request to one member.
  EtcdClient(std::vector<base::Endpoint> members, double seconds);
  ~EtcdClient();

  struct Lease {
    std::string id;
    double ttl_seconds = 0;
  };
  Lease grant(std::int64_t ttl_seconds);
  /// Renews the lease and returns its time to live from now; none if it does not exist any more. The whole
  /// call takes at most about `within_seconds`.
  std::optional<double> keep_alive(const std::string& lease, double within_seconds = 1e9);
  /// It is no error if the lease does not exist.
  void revoke(const std::string& lease);

  struct Value {
    std::string text;
    std::string lease;
    std::int64_t create_revision = 0;
  };
  std::optional<Value> get(const std::string& key);
  /// Puts the key if it does not exist. Returns the key's value after that; it is the caller's if it has the
  /// caller's lease.
  Value create(const std::string& key, const std::string& text, const std::string& lease);
  /// Puts the key if it is still the one created at this revision; else returns false.
  bool replace(const std::string& key, std::int64_t create_revision, const std::string& text,
               const std::string& lease);

  /// The numeric address of this host on its route to the first reachable member, preferably one on another
  /// host.
  std::string own_address();
  /// Makes the current call fail soon, and all later ones. Any thread may call it.
  void abort();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::core::run
