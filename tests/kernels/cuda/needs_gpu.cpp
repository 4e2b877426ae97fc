// Ends a test executable with success before its first test if there is no GPU. The output shows whether
// tests ran.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/backend/cuda_plugin.h"

namespace trainerd::test {
namespace {

[[maybe_unused]] const bool kHasGpu = [] {
  const std::string why = kernels::why_no_cuda();
  if (why.empty()) return true;
  std::printf("no GPU: no test was run (%s)\n", why.c_str());
  std::fflush(stdout);
  std::_Exit(0);
}();

}  // namespace
}  // namespace trainerd::test
