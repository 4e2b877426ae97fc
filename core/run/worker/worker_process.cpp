#include "core/run/worker/worker_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string>

#include "core/run/worker/worker_environment.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

constexpr int kFirstDescriptor = 3;
// Signals that users, terminals and schedulers send, often to every process of a job. The agent handles them
// for its workers.
constexpr std::array<int, 6> kStopSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

/// Frees both posix_spawn attribute objects, also if the constructor throws.
struct SpawnSetup {
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  SpawnSetup() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

WorkerProcess::WorkerProcess(const std::string& executable, std::int64_t rank, base::UniqueFd control,
                             const Memory& memory, const std::map<std::string, std::string>& variables) {
  SpawnSetup setup;
  // Sources are duplicated to high numbers first, because a target number may be another source's.
  std::vector<base::UniqueFd> high;
  std::vector<int> sources{control.get()};
  sources.insert(sources.end(), memory.segments.begin(), memory.segments.end());
  if (memory.world >= 0) sources.push_back(memory.world);
  if (memory.flights >= 0) sources.push_back(memory.flights);
  sources.insert(sources.end(), memory.held.begin(), memory.held.end());
  const int above = std::max(64, kFirstDescriptor + static_cast<int>(sources.size()));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    high.emplace_back(::fcntl(sources[i], F_DUPFD_CLOEXEC, above));
    if (!high.back())
      throw base::device_error("cannot hand a descriptor to the worker: " + base::errno_text(errno));
    ::posix_spawn_file_actions_adddup2(&setup.actions, high.back().get(),
                                       kFirstDescriptor + static_cast<int>(i));
  }
  // Stop signals stay blocked until the worker ignores them.
  sigset_t held, defaults;
  sigemptyset(&held);
  for (const int signal : kStopSignals) sigaddset(&held, signal);
  sigaddset(&held, SIGXCPU);  // stays blocked: the worker polls for it between steps
  sigfillset(&defaults);
  ::posix_spawnattr_setsigmask(&setup.attributes, &held);
  ::posix_spawnattr_setsigdefault(&setup.attributes, &defaults);
  ::posix_spawnattr_setpgroup(&setup.attributes, 0);
  ::posix_spawnattr_setflags(&setup.attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<std::string> words{"trainerd: rank " + std::to_string(rank),
                                 "worker",
                                 "--control",
                                 std::to_string(kFirstDescriptor),
                                 "--segments",
                                 std::to_string(memory.segments.size()),
                                 "--world",
                                 memory.world >= 0 ? "1" : "0",
                                 "--flights",
                                 memory.flights >= 0 ? "1" : "0",
                                 "--held",
                                 std::to_string(memory.held.size()),
                                 "--parent",
                                 std::to_string(::getpid()),
                                 "--rank",
                                 std::to_string(rank)};
  std::vector<std::string> environment = environment_with(environ, variables);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
  };
  const int rc = ::posix_spawn(&pid_, executable.c_str(), &setup.actions, &setup.attributes,
                               pointers(words).data(), pointers(environment).data());
  if (rc != 0)
    throw base::device_error("cannot start the worker " + executable + ": " + base::errno_text(rc));
  pidfd_ = base::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) {
    const int error = errno;
    kill();
    wait();
    throw base::device_error("cannot watch the worker (pidfd_open): " + base::errno_text(error));
  }
}

WorkerProcess::~WorkerProcess() {
  if (reaped_) return;
  kill();
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
}

void WorkerProcess::kill() {
  if (!reaped_ && pid_ > 0) ::kill(pid_, SIGKILL);
}

WorkerProcess::End WorkerProcess::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
  reaped_ = true;
  if (WIFSIGNALED(status))
    return {"signal " + std::to_string(WTERMSIG(status)) + " (" + ::strsignal(WTERMSIG(status)) + ")",
            WTERMSIG(status)};
  if (WEXITSTATUS(status) == 0) return {};
  return {"exit status " + std::to_string(WEXITSTATUS(status)), 0};
}

void leave_signals_to_agent() {
  for (const int signal : kStopSignals) ::signal(signal, SIG_IGN);
  // As in the agent: a closed pipe or a file-size limit must be a write error, not kill the process.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

void name_rank(std::int64_t rank) {
  constexpr std::size_t kMaxLetters = 15;
  const std::string number = std::to_string(rank);
  for (const char* front : {"trainerd:rank ", "trainerd:rank", "trainerd:r", "rank "})
    if (const std::string name = front + number; name.size() <= kMaxLetters) {
      ::prctl(PR_SET_NAME, name.c_str());
      return;
    }
}

bool cpu_time_is_up() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXCPU);
  const timespec now{};
  return ::sigtimedwait(&set, nullptr, &now) == SIGXCPU;
}

bool die_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before the line above took effect.
  return ::getppid() == parent;
}

}  // namespace trainerd::core::run
