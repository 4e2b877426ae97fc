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

/// Requests to etcd 3.4 or later by the JSON gateway that each of its members serves at its client address
/// (https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway). The members are asked in turn, the one that
/// answered last first. All calls throw CommError when none answers in time, or when etcd refuses. One
/// thread.
class EtcdClient {
 public:
  /// `seconds`: for one request to one member.
  EtcdClient(std::vector<base::Endpoint> members, double seconds);
  ~EtcdClient();

  struct Lease {
    std::string id;
    double ttl_seconds = 0;
  };
  Lease grant(std::int64_t ttl_seconds);
  /// Its time to live from now; none: there is no such lease any more. No member is waited for longer than
  /// `within_seconds` from now, all together.
  std::optional<double> keep_alive(const std::string& lease, double within_seconds = 1e9);
  /// One that is gone is no error.
  void revoke(const std::string& lease);

  struct Value {
    std::string text;
    std::string lease;
    std::int64_t create_revision = 0;
  };
  std::optional<Value> get(const std::string& key);
  /// Puts the key if it is not there. What there is afterwards: the caller's, if it has the caller's lease.
  Value create(const std::string& key, const std::string& text, const std::string& lease);
  /// Puts the key if it is still the one that was created at this revision: else false.
  bool replace(const std::string& key, std::int64_t create_revision, const std::string& text,
               const std::string& lease);

  /// The numeric address of this host on its way to the first member that can be reached, and is on another
  /// host if any such is.
  std::string own_address();
  /// From any thread: the call under way fails soon, and so do later ones.
  void abort();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::core::run
