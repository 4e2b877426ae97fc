#include "kernels/base/process_memory.h"

#include <unistd.h>

#include <fstream>

namespace trainerd::base {

std::int64_t resident_bytes() {
  std::int64_t pages = 0, resident_pages = 0;
  std::ifstream file("/proc/self/statm");
  return file >> pages >> resident_pages ? resident_pages * ::sysconf(_SC_PAGESIZE) : 0;
}

std::int64_t out_of_memory_kills(const std::string& vmstat) {
  std::ifstream file(vmstat);
  std::string name;
  for (std::int64_t count = 0; file >> name >> count;)
    if (name == "oom_kill") return count;
  return 0;
}

}  // namespace trainerd::base
