#include "core/slurm/program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::slurm {
namespace {

struct Pipe {
  base::UniqueFd read, write;
};

Pipe open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw base::device_error("cannot make a pipe: " + base::errno_text(errno));
  return {base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

/// Frees the two attribute objects of posix_spawn on every exit.
struct SpawnAttributes {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  SpawnAttributes() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  ~SpawnAttributes() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

/// Reads both pipes to their ends: a program that fills one pipe must not block while the other is read.
void read_both(int output_fd, int error_fd, ProgramOutcome& outcome) {
  std::array<pollfd, 2> fds{pollfd{output_fd, POLLIN, 0}, pollfd{error_fd, POLLIN, 0}};
  const std::array<std::string*, 2> texts{&outcome.output, &outcome.error};
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      std::array<char, 4096> block{};
      const ssize_t n = ::read(fds[i].fd, block.data(), block.size());
      if (n > 0) texts[i]->append(block.data(), static_cast<std::size_t>(n));
      else if (n == 0 || errno != EINTR) fds[i].fd = -1;
    }
  }
}

}  // namespace

std::optional<ProgramOutcome> run_program(const std::vector<std::string>& words) {
  Pipe output = open_pipe(), error = open_pipe();
  SpawnAttributes spawn;
  ::posix_spawn_file_actions_addopen(&spawn.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&spawn.actions, output.write.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&spawn.actions, error.write.get(), STDERR_FILENO);
  // The agent blocks some signals, but other programs need them.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&spawn.attributes, &none);
  ::posix_spawnattr_setsigdefault(&spawn.attributes, &all);
  ::posix_spawnattr_setflags(&spawn.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int rc = ::posix_spawnp(&pid, argv.front(), &spawn.actions, &spawn.attributes, argv.data(), environ);
  if (rc == ENOENT) return std::nullopt;
  if (rc != 0) throw base::device_error("cannot start " + words.front() + ": " + base::errno_text(rc));
  output.write.reset();
  error.write.reset();
  ProgramOutcome outcome;
  read_both(output.read.get(), error.read.get(), outcome);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace trainerd::core::slurm
