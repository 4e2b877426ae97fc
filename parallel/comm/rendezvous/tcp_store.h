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

// A store that one process serves over TCP. Every message is a frame: a length of four bytes (little endian),
// then at most StoreLimits::frame_bytes bytes. A request is a letter and its fields, an answer a letter and a
// value. A connection starts with a greeting, so that connections of other programs are closed at their first
// bytes. Then both sides prove that they have the job's token (job_token.h). Nothing is read or changed
// before that.

namespace trainerd::parallel {

struct StoreLimits {
  std::size_t frame_bytes = std::size_t{1} << 20;
  std::size_t stored_bytes = std::size_t{256} << 20;  ///< total of keys and values
  double greeting_seconds = 10;  ///< a connection that has not proved itself by then is closed
};

/// Serves a store on its own thread. No input from a client can end the server. A connection that sends
/// anything but valid requests with the job's token is closed, counted and logged. `log` is called from the
/// server's thread; after the first refusals only some are logged.
class StoreServer {
 public:
  /// `listener`: from base::listen_at.
  StoreServer(base::UniqueFd listener, JobToken token, std::function<void(const std::string&)> log,
              const StoreLimits& limits = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::uint16_t port() const;
  /// Address for processes on this host.
  base::Endpoint local_endpoint() const;
  /// Number of connections closed for invalid or missing messages. Any thread.
  std::int64_t refused() const;

  /// A connection that a peer handed over (`join_store`), and the text sent with it. The socket is blocking
  /// and belongs to the caller.
  struct Joined {
    base::UniqueFd socket;
    std::string text;
  };
  /// The next connection that was handed over, if any.
  std::optional<Joined> take_joined();
  /// Readable when `take_joined` has something.
  int event_fd() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A client. Any number of threads; concurrent requests use separate connections.
class TcpStore final : public Store {
 public:
  /// Retries to connect until `deadline_seconds` have passed, then throws CommError.
  TcpStore(const base::Endpoint& server, JobToken token, double deadline_seconds);
  ~TcpStore() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::optional<std::string> wait(const std::string& key, double seconds) override;
  /// Adds to the number under `key` (0 if there is none) and returns the sum. Throws CommError if the value
  /// is not a number.
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

/// Connects and hands the connection over to the owner of the server, with `text`. It is no client connection
/// any more. Makes one attempt. Returns an empty descriptor and sets `why` if it finds no store of the job
/// within `seconds`, or if the store takes longer than `answer_seconds` for one of its three answers.
/// `connected` receives the descriptor, so that another thread can shut it down to end the wait, and -1
/// before a failed one is closed.
base::UniqueFd join_store(const base::Endpoint& server, const JobToken& token, std::string_view text,
                          double seconds, std::string& why, const std::function<void(int)>& connected = {},
                          double answer_seconds = 30);

}  // namespace trainerd::parallel
