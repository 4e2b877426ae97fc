#include "kernels/base/cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <optional>

namespace trainerd::base {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// None for "max", "-1" and anything that is not a number.
std::optional<std::int64_t> positive_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0) return std::nullopt;
  return value;
}

/// Calls `visit` with the directory of `group` below `root` and of every group above it, including `root`. In
/// a container the path may be the host's, which does not exist there. The container's own group is then
/// mounted at `root`.
void each_ancestor(const std::string& root, std::string group,
                   const std::function<void(const std::string&)>& visit) {
  for (;;) {
    while (group.ends_with('/')) group.pop_back();
    visit(root + group);
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return;
    group.resize(slash);
  }
}

void limit_memory(CgroupLimits& limits, const std::string& file) {
  if (const auto bytes = positive_number(first_line(file)))
    limits.memory_bytes = std::min(limits.memory_bytes, *bytes);
}

void limit_cores(CgroupLimits& limits, const std::string& quota, const std::string& period) {
  const auto q = positive_number(quota), p = positive_number(period);
  if (!q || !p) return;
  const double cores = static_cast<double>(*q) / static_cast<double>(*p);
  limits.cores = limits.cores > 0 ? std::min(limits.cores, cores) : cores;
}

bool names_controller(const std::string& list, const std::string& controller) {
  return ("," + list + ",").find("," + controller + ",") != std::string::npos;
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& membership, const std::string& mount) {
  CgroupLimits limits;
  std::ifstream file(membership);
  // One line per hierarchy: "number:controllers:path". Version 2 has number 0 and no controllers.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (controllers.empty())
      each_ancestor(mount, group, [&](const std::string& at) {
        limit_memory(limits, at + "/memory.max");
        const std::string cpu = first_line(at + "/cpu.max");  // "quota period"
        if (const std::size_t space = cpu.find(' '); space != std::string::npos)
          limit_cores(limits, cpu.substr(0, space), cpu.substr(space + 1));
      });
    if (names_controller(controllers, "memory"))
      each_ancestor(mount + "/memory", group,
                    [&](const std::string& at) { limit_memory(limits, at + "/memory.limit_in_bytes"); });
    if (names_controller(controllers, "cpu"))
      each_ancestor(mount + "/cpu", group, [&](const std::string& at) {
        limit_cores(limits, first_line(at + "/cpu.cfs_quota_us"), first_line(at + "/cpu.cfs_period_us"));
      });
  }
  return limits;
}

std::int64_t node_memory_bytes() {
  const std::int64_t machine = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return std::min(machine, read_cgroup_limits().memory_bytes);
}

}  // namespace trainerd::base
