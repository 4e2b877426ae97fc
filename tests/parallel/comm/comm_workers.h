#pragma once

// Ranks as real processes. The test is their agent: it starts them, detects their deaths and collects their
// messages.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <iostream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::test {

constexpr int kCommExit = 7, kWrongExit = 3;

class Workers {
 public:
  /// Forks a process per rank that runs `body` and exits with 0, with kCommExit after a CommError, or with
  /// kWrongExit. Calls `on_death` with the rank of a killed process.
  Workers(std::int64_t ranks, const std::function<void(std::int64_t)>& body,
          std::function<void(std::size_t)> on_death = {})
      : on_death_(std::move(on_death)) {
    std::cout.flush();
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      int ends[2];
      REQUIRE(::pipe(ends) == 0);
      const pid_t pid = ::fork();
      REQUIRE(pid >= 0);
      if (pid == 0) ::_exit(work(body, rank, ends[1]));
      ::close(ends[1]);
      workers_.push_back({pid, base::UniqueFd(ends[0]), -1, ""});
    }
  }
  ~Workers() {
    for (Worker& worker : workers_)
      if (worker.status < 0) {
        ::kill(worker.pid, SIGKILL);
        ::waitpid(worker.pid, nullptr, 0);
      }
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void signal(std::size_t rank, int number) const { ::kill(workers_[rank].pid, number); }

  /// Waits for all workers except `except`. False if one still runs after `seconds`.
  bool wait_all(double seconds, std::size_t except = static_cast<std::size_t>(-1)) {
    const double deadline = base::monotonic_seconds() + seconds;
    for (;;) {
      bool all = true;
      for (std::size_t rank = 0; rank < workers_.size(); ++rank)
        if (workers_[rank].status < 0 && rank != except && !reap(rank)) all = false;
      if (all || base::monotonic_seconds() > deadline) return all;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  bool killed(std::size_t rank) const {
    return workers_[rank].status >= 0 && WIFSIGNALED(workers_[rank].status);
  }
  /// The exit code of a worker; -1 if it has not exited or was killed.
  int code(std::size_t rank) const {
    return workers_[rank].status >= 0 && WIFEXITED(workers_[rank].status) ? WEXITSTATUS(workers_[rank].status)
                                                                          : -1;
  }
  const std::string& text(std::size_t rank) const { return workers_[rank].text; }

 private:
  struct Worker {
    pid_t pid;
    base::UniqueFd out;
    int status;
    std::string text;  ///< message of the exception that ended it
  };

  static int work(const std::function<void(std::int64_t)>& body, std::int64_t rank, int out) {
    const auto say = [&](const char* text) {
      base::write_all(out, std::as_bytes(std::span(text, std::char_traits<char>::length(text))));
    };
    try {
      body(rank);
      return 0;
    } catch (const base::CommError& error) {
      say(error.what());
      return kCommExit;
    } catch (const std::exception& error) {
      say(error.what());
      return kWrongExit;
    }
  }

  bool reap(std::size_t rank) {
    Worker& worker = workers_[rank];
    int status = 0;
    if (::waitpid(worker.pid, &status, WNOHANG) != worker.pid) return false;
    worker.status = status;
    std::array<char, 2000> text{};
    const ssize_t n = ::read(worker.out.get(), text.data(), text.size());
    worker.text.assign(text.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (WIFSIGNALED(status) && on_death_) on_death_(rank);
    return true;
  }

  std::function<void(std::size_t)> on_death_;
  std::vector<Worker> workers_;
};

}  // namespace trainerd::test
