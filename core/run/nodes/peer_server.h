#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "core/run/wire/channel.h"
#include "kernels/base/fd.h"
#include "parallel/comm/rendezvous/job_token.h"
#include "parallel/comm/rendezvous/tcp_store.h"

namespace trainerd::core::run {

/// Agents of other nodes connect here to exchange snapshots. Each connection, which has proved the job's
/// token, is served by a thread of its own.
class PeerServer {
 public:
  /// Handles one connection; `text` is what the peer sent with it. What it throws is logged.
  using Serve = std::function<void(Channel& channel, const std::string& text)>;
  /// Listens at a free port of `address`. `what` names the service in the log. Throws CommError.
  PeerServer(const std::string& address, const parallel::JobToken& token, std::string what, Serve serve);
  /// Ends all connections and waits for their threads.
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  std::uint16_t port() const { return server_.port(); }

 private:
  struct Visitor {
    int fd = -1;
    bool done = false;
    std::thread thread;
  };
  void accept();
  void visit(Visitor& visitor, Channel channel, const std::string& text);

  std::string what_;
  Serve serve_;
  parallel::StoreServer server_;
  base::UniqueFd over_;
  std::mutex mutex_;
  std::list<Visitor> visitors_;
  std::thread accepting_;
};

}  // namespace trainerd::core::run
