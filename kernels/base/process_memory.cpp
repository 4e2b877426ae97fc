#include "kernels/base/process_memory.h"

#include <unistd.h>

#include <fstream>

namespace trainerd::base {

std::int64_t resident_bytes() {
  std::int64_t pages = 0, resident_pages = 0;
  std::ifstream file("/proc/self/statm");
  return file >> pages >> resident_pages ? resident_pages * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace trainerd::base
