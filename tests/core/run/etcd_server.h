#pragma once

// An etcd process for tests, on free ports of this host.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/run/coordinator/etcd_client.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/socket.h"
#include "tests/io/temp_dir.h"

namespace trainerd::test {

class EtcdServer {
 public:
  EtcdServer() : client_(free_port()), peer_(free_port()) { start(); }
  ~EtcdServer() { kill(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  base::Endpoint endpoint() const { return {"127.0.0.1", client_}; }
  /// Also restarts a killed server with its data.
  void start() {
    const std::string client = "http://127.0.0.1:" + std::to_string(client_),
                      peer = "http://127.0.0.1:" + std::to_string(peer_), log = data_ / "log";
    std::vector<std::string> words{"etcd",
                                   "--name=test",
                                   "--data-dir=" + (data_ / "data"),
                                   "--listen-client-urls=" + client,
                                   "--advertise-client-urls=" + client,
                                   "--listen-peer-urls=" + peer,
                                   "--initial-advertise-peer-urls=" + peer,
                                   "--initial-cluster=test=" + peer};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(fd, 1), ::dup2(fd, 2);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    const double end = base::monotonic_seconds() + 60;
    for (std::string why; !answers(why); ::usleep(10000)) {
      const bool ended = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
      if (!ended && base::monotonic_seconds() < end) continue;
      if (ended) pid_ = -1;
      kill();
      FAIL("etcd does not start (deploy/install-deps.sh --tests installs it): " << why << "\n"
                                                                                << read_file(log));
    }
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  /// True if etcd answers requests. It listens before its election, but answers only after it.
  bool answers(std::string& why) const {
    try {
      core::run::EtcdClient({endpoint()}, 10).get("/");
      return true;
    } catch (const base::CommError& error) {
      why = error.what();
      return false;
    }
  }
  static std::uint16_t free_port() { return base::local_port(base::listen_at({"127.0.0.1", 0}).get()); }

  // In memory (/dev/shm) if available: etcd flushes its files at each change.
  TempDir data_{std::filesystem::is_directory("/dev/shm") ? std::filesystem::path("/dev/shm")
                                                          : std::filesystem::temp_directory_path()};
  std::uint16_t client_, peer_;
  pid_t pid_ = -1;
};

}  // namespace trainerd::test
