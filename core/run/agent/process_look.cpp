#include "core/run/agent/process_look.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace trainerd::core::run {
namespace {

/// The fields after the process name in a `stat` file of /proc (the name may contain spaces); empty if the
/// process is gone.
std::string behind_name(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return "";
  const std::size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() ? line.substr(name_end + 2) : "";
}

bool has_tracer(const std::string& folder) {
  std::ifstream file(folder + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("TracerPid:")) return line.find_first_of("123456789") != std::string::npos;
  return false;
}

bool has_runnable_thread(const std::string& folder) {
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator(folder + "/task", error))
    if (behind_name(thread.path().string() + "/stat").starts_with('R')) return true;
  return false;
}

}  // namespace

ProcessLook look_at(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const std::string fields = behind_name(folder + "/stat");
  if (fields.empty()) return {.state = 'X'};
  // The state, then ten numbers, then the user and system CPU time in ticks (proc_pid_stat(5)).
  std::istringstream in(fields);
  ProcessLook look;
  std::string skipped;
  in >> look.state;
  for (int i = 0; i < 10; ++i) in >> skipped;
  double user = 0, system = 0;
  in >> user >> system;
  look.cpu_seconds = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  look.traced = look.state == 't' || has_tracer(folder);
  look.runnable = look.state == 'R' || has_runnable_thread(folder);
  return look;
}

}  // namespace trainerd::core::run
