#include "core/run/worker/worker_environment.h"

#include <string_view>

#include "kernels/base/socket.h"

namespace trainerd::core::run {

std::map<std::string, std::string> worker_variables(const job::JobSpec& job, const std::string& interface) {
  if (!job::uses_nccl(job) || job.parallel.ranks() == 1) return {};
  std::map<std::string, std::string> variables{{"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
                                               {"CUDA_MODULE_LOADING", "EAGER"}};
  // "=" selects exactly this name instead of a prefix.
  if (const std::string name = interface.empty() ? "" : base::interface_name(interface); !name.empty())
    variables["NCCL_SOCKET_IFNAME"] = "=" + name;
  return variables;
}

std::vector<std::string> environment_with(const char* const* inherited,
                                          const std::map<std::string, std::string>& variables) {
  std::vector<std::string> entries;
  std::map<std::string, std::string> missing = variables;
  for (; *inherited != nullptr; ++inherited) {
    const std::string_view entry(*inherited);
    missing.erase(std::string(entry.substr(0, entry.find('='))));
    entries.emplace_back(entry);
  }
  for (const auto& [name, value] : missing) entries.push_back(name + "=" + value);
  return entries;
}

}  // namespace trainerd::core::run
