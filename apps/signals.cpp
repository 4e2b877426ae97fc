#include "apps/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "kernels/base/error.h"

namespace trainerd::apps {

RemoveOnSignal::RemoveOnSignal() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction inherited {};
    ::sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  signals_ = base::UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC));
  end_ = base::UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!signals_ || !end_) throw base::device_error("cannot listen for signals: " + base::errno_text(errno));
  thread_ = std::thread([this] { watch(); });
}

RemoveOnSignal::~RemoveOnSignal() {
  const std::uint64_t one = 1;
  while (::write(end_.get(), &one, sizeof one) < 0 && errno == EINTR) continue;
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void RemoveOnSignal::set(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  directory_ = directory;
}

void RemoveOnSignal::watch() {
  std::array<pollfd, 2> fds{{{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}}};
  while (::poll(fds.data(), fds.size(), -1) < 0) continue;
  if ((fds[0].revents & POLLIN) == 0) return;
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != sizeof info) return;
  // The directory may be about to be created.
  for (int attempt = 0; attempt < 100; ++attempt) {
    {
      const std::lock_guard lock(mutex_);
      if (!directory_.empty()) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  {
    const std::lock_guard lock(mutex_);
    std::error_code ignored;
    // The other thread may be creating a file in it meanwhile.
    for (int attempt = 0; attempt < 100 && !directory_.empty(); ++attempt)
      if (std::filesystem::remove_all(directory_, ignored) == 0) break;
  }
  const int signal = static_cast<int>(info.ssi_signo);
  ::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(signal);
}

base::UniqueFd open_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM})
    sigaddset(&set, signal);
  // With nohup, SIGHUP stays ignored.
  struct sigaction inherited {};
  ::sigaction(SIGHUP, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGALRM, SIG_DFL);  // an ignored signal would not arrive (limit_alarm.h)
  // A closed output pipe must not end training, and a file-size limit must be an error like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  base::UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd) throw base::device_error("cannot listen for signals: " + base::errno_text(errno));
  return fd;
}

}  // namespace trainerd::apps
