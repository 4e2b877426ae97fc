// Ends a test executable with success before its first test if there is no GPU, and with an error if there is
// one that cannot be used. The output shows whether tests ran.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/backend/cuda_plugin.h"

namespace trainerd::test {
namespace {

[[maybe_unused]] const bool kHasGpu = [] {
  const std::string why = kernels::why_no_cuda();
  if (why.empty()) return true;
  const bool is_here = ::access("/dev/nvidiactl", F_OK) == 0;
  std::printf("%s no test was run (%s)\n", is_here ? "a GPU is here, but" : "no GPU:", why.c_str());
  std::fflush(stdout);
  std::_Exit(is_here ? 1 : 0);
}();

}  // namespace
}  // namespace trainerd::test
