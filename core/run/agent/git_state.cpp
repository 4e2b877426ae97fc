#include "core/run/agent/git_state.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::core::run {
namespace {

constexpr std::size_t kMaxOutput = std::size_t{4} << 20;
constexpr double kKillSeconds = 0.2;
constexpr std::size_t kMaxChanged = 50;  ///< maximum number of listed files

struct GitOutput {
  std::string text;
  std::string error;  ///< why there is no text; empty if there is
};

/// Reads until the end of the pipe or the deadline. Returns an error text, empty on success.
std::string read_until(int fd, double deadline, std::string& text) {
  std::array<char, 4096> buffer{};
  for (;;) {
    pollfd p{fd, POLLIN, 0};
    const double left = deadline - base::monotonic_seconds();
    const int ready = left <= 0 ? 0 : ::poll(&p, 1, static_cast<int>(1e3 * left) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return "git did not answer in time";
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return base::errno_text(errno);
    if (n == 0) return "";
    text.append(buffer.data(), static_cast<std::size_t>(n));
    if (text.size() > kMaxOutput) return "git lists too many files";
  }
}

/// The environment without GIT_DIR and other variables that name a repository. Git sets them for its hooks.
std::vector<char*> environment_for_git() {
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (const std::string_view name(*variable);
        !name.starts_with("GIT_") || name.starts_with("GIT_CONFIG"))  // may set safe.directory
      variables.push_back(*variable);
  variables.push_back(nullptr);
  return variables;
}

/// Runs `git` with these arguments and returns its standard output. Standard error is discarded.
GitOutput run_git(std::vector<std::string> words, double deadline) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {"", base::errno_text(errno)};
  const base::UniqueFd from(ends[0]);
  base::UniqueFd to(ends[1]);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);  // own process group: the kill reaches its children too
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int rc =
      ::posix_spawnp(&pid, "git", &actions, &attributes, argv.data(), environment_for_git().data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (rc != 0) return {"", rc == ENOENT ? "git is not installed" : "git: " + base::errno_text(rc)};
  to.reset();  // without this the pipe never ends
  GitOutput output;
  output.error = read_until(from.get(), deadline, output.text);
  if (!output.error.empty()) ::kill(-pid, SIGKILL);
  int status = 0;
  // A process that SIGKILL does not end, as on a file system that is gone, is left behind.
  const double end = std::max(deadline, base::monotonic_seconds() + kKillSeconds);
  pid_t ended = 0;
  while ((ended = ::waitpid(pid, &status, WNOHANG)) == 0 && base::monotonic_seconds() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (ended == 0) output.error = "git does not end";
  if (output.error.empty() && status != 0)
    output.error = "git " + words[words.size() > 4 ? 4 : 0] + " failed";
  return output;
}

bool in_working_tree(const std::filesystem::path& directory) {
  std::error_code error;
  for (std::filesystem::path at = directory;; at = at.parent_path()) {
    if (std::filesystem::exists(at / ".git", error)) return true;
    if (at == at.parent_path()) return false;
  }
}

}  // namespace

std::optional<GitState> git_state_of(const std::string& job_file, double seconds) {
  const double deadline = base::monotonic_seconds() + seconds;
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(job_file, error);
  if (error || !in_working_tree(file.parent_path())) return std::nullopt;
  // Takes no locks: another git may be running there.
  const std::string directory = file.parent_path();
  const auto git = [&](std::initializer_list<std::string> words) {
    std::vector<std::string> all{"git", "--no-optional-locks", "-C", directory};
    all.insert(all.end(), words);
    return run_git(std::move(all), deadline);
  };
  GitState state;
  const auto add_changed = [&](const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (state.changed.size() >= kMaxChanged) return;
      if (std::find(state.changed.begin(), state.changed.end(), line) == state.changed.end())
        state.changed.push_back(line);
    }
  };
  const auto head = git({"rev-parse", "--verify", "--quiet", "HEAD"});  // fails before the first commit
  const auto branch = git({"rev-parse", "--abbrev-ref", "HEAD"});
  const auto tracked = git({"status", "--porcelain", "--untracked-files=no", "--", "."});
  const auto job = git({"status", "--porcelain", "--untracked-files=all", "--", file.filename().string()});
  for (const GitOutput* output : {&tracked, &job})
    if (!output->error.empty())
      return GitState{.commit = {}, .branch = {}, .changed = {}, .error = output->error};
  if (head.error.empty()) state.commit = head.text.substr(0, head.text.find('\n'));
  if (branch.error.empty()) state.branch = branch.text.substr(0, branch.text.find('\n'));
  if (state.branch == "HEAD") state.branch = "(detached)";
  add_changed(tracked.text);
  add_changed(job.text);
  return state;
}

}  // namespace trainerd::core::run
