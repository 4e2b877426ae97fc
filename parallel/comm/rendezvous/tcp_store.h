#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/fd.h"
#include "kernels/base/socket.h"
#include "parallel/comm/rendezvous/job_token.h"
#include "parallel/comm/rendezvous/store.h"

// A store that one process serves to all over TCP. Every message is a frame: four bytes of length (little
// endian), then at most kLargestFrame bytes. A request is a letter and its fields, an answer a letter and a
// value. A connection begins with a greeting, so that other programs' connections are dropped at their
// first bytes, and with proofs of both sides that they have the job's token (job_token.h): without the proof
// nothing is read or changed.

namespace trainerd::parallel {

struct StoreLimits {
  std::size_t frame_bytes = std::size_t{1} << 20;
  std::size_t stored_bytes = std::size_t{256} << 20;  ///< keys and values together
  double greeting_seconds = 10;  ///< a connection that has not proved itself by then is closed
};

/// Serves a store on a thread of its own. No byte that a client sends ends the server. A connection that
/// sends anything but a request of the job's clients is closed, counted and logged to `log` (from that
/// thread; of many in a row only a few).
class StoreServer {
 public:
  /// `listener`: of base::listen_at.
  StoreServer(base::UniqueFd listener, JobToken token, std::function<void(const std::string&)> log,
              const StoreLimits& limits = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::uint16_t port() const;
  /// Where processes of this host reach it.
  base::Endpoint local_endpoint() const;
  /// Connections that were closed for invalid or missing messages. Any thread.
  std::int64_t refused() const;

  /// A connection that a peer handed over (`join_store`), and the text that it sent with it. Blocking; the
  /// caller owns it from then on.
  struct Joined {
    base::UniqueFd socket;
    std::string text;
  };
  /// The next connection that was handed over, if there is one.
  std::optional<Joined> take_joined();
  /// Readable when `take_joined` has something.
  int event_fd() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A client. Any number of threads; each request takes a connection of its own.
class TcpStore final : public Store {
 public:
  /// Connects, again and again until `deadline_seconds` have passed: then CommError.
  TcpStore(const base::Endpoint& server, JobToken token, double deadline_seconds);
  ~TcpStore() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::optional<std::string> wait(const std::string& key, double seconds) override;
  /// Adds to the number under `key` (0 if there is none) and gives the sum. Throws CommError when the value
  /// is no number.
  std::int64_t add(const std::string& key, std::int64_t amount);

 private:
  std::optional<std::string> ask(char request, const std::string& key, std::string_view value,
                                 double seconds);
  base::Endpoint server_;
  JobToken token_;
  double deadline_seconds_;
  std::mutex mutex_;
  std::vector<base::UniqueFd> idle_;
};

/// Hands the connection over to the owner of the server, with `text`: it is no longer a client's. One
/// attempt: an empty descriptor, and `why`, when no store of the job is there within `seconds`, or one that
/// is takes longer than `answer_seconds` to give one of its three answers. `connected` is given the
/// descriptor meanwhile, by whose shutdown the wait ends, and -1 before a failed one is closed.
base::UniqueFd join_store(const base::Endpoint& server, const JobToken& token, std::string_view text,
                          double seconds, std::string& why, const std::function<void(int)>& connected = {},
                          double answer_seconds = 30);

}  // namespace trainerd::parallel
