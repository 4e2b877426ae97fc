#include "apps/signals.h"

#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>

#include "kernels/base/error.h"

namespace trainerd::apps {

base::UniqueFd open_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM})
    sigaddset(&set, signal);
  // Under nohup a lost terminal ends nothing.
  struct sigaction inherited {};
  ::sigaction(SIGHUP, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGALRM, SIG_DFL);  // an ignored one would not arrive (limit_alarm.h)
  // A reader of our output that goes away is no reason to end training, and a file-size limit is an error
  // like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  base::UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd) throw base::device_error("cannot listen for signals: " + base::errno_text(errno));
  return fd;
}

}  // namespace trainerd::apps
