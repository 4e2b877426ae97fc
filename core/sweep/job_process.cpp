#include "core/sweep/job_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "io/storage/file_errors.h"
#include "kernels/base/error.h"
#include "kernels/base/output_file.h"

namespace trainerd::core::sweep {
namespace {

constexpr int kNotStarted = 127;

/// This process's environment, overridden by `over`.
std::vector<std::string> environment_with(const std::vector<std::string>& over) {
  std::vector<std::string> all = over;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=')) + "=";
    if (std::none_of(over.begin(), over.end(), [&](const std::string& o) { return o.starts_with(name); }))
      all.push_back(text);
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

JobProcess::JobProcess(const Command& command) {
  std::vector<std::string> words = command.words, environment = environment_with(command.environment);
  const std::vector<char*> argv = pointers(words), envp = pointers(environment);
  const base::UniqueFd log = base::open_append(command.log);
  if (!log) throw io::open_error(command.log, errno);
  const base::UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t parent = ::getpid();
  sigset_t none;
  sigemptyset(&none);
  // posix_spawn cannot set the parent-death signal. After the fork only async-signal-safe calls are allowed.
  pid_ = ::fork();
  if (pid_ < 0) throw base::device_error("cannot start a job: " + base::errno_text(errno));
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(kNotStarted);  // the parent died before the call
    ::dup2(nothing.get(), STDIN_FILENO);
    ::dup2(log.get(), STDOUT_FILENO);
    ::dup2(log.get(), STDERR_FILENO);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(command.executable.c_str(), argv.data(), envp.data());
    ::_exit(kNotStarted);
  }
  pidfd_ = base::UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) {
    const int error = errno;
    signal(SIGKILL);
    wait();
    throw base::device_error("cannot watch a job (pidfd_open): " + base::errno_text(error));
  }
}

JobProcess::~JobProcess() {
  if (reaped_) return;
  signal(SIGKILL);
  wait();
}

void JobProcess::signal(int number) const {
  if (!reaped_ && pid_ > 0) ::kill(pid_, number);
}

int JobProcess::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
  reaped_ = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace trainerd::core::sweep
