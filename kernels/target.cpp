#include "kernels/target.h"

#include <oneapi/dnnl/dnnl.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "kernels/base/cgroup.h"

namespace trainerd::kernels {
namespace {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  // A thread more than the quota pays for would be stopped for a part of every period, and all others wait
  // for it.
  const double quota = std::ceil(base::read_cgroup_limits().cores);
  const int n = CPU_COUNT(&set);
  return std::max(1, quota > 0 && quota < n ? static_cast<int>(quota) : n);
}

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.rfind("model name", 0) == 0) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  return "cpu";
}

}  // namespace

const char* to_string(DeviceKind kind) { return kind == DeviceKind::cpu ? "cpu" : "cuda"; }
const char* to_string(Isa isa) { return isa == Isa::portable ? "portable" : "avx512"; }

Target detect_cpu(int threads) {
  Target target;
  target.name = processor_name();
  const dnnl_version_t* library = dnnl_version();
  target.gemm_library = "oneDNN " + std::to_string(library->major) + "." + std::to_string(library->minor) + "." +
                        std::to_string(library->patch);
  target.threads = threads > 0 ? threads : usable_cores();
#if defined(__x86_64__)
  // Everything the AVX-512 build is compiled with must be there: bf16 dot products and byte permutes included.
  const bool bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  if (bf16 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi"))
    target.isa = Isa::avx512;
  target.bf16_gemm = bf16;
#endif
  return target;
}

}  // namespace trainerd::kernels
