#include "kernels/target/target.h"

#include <oneapi/dnnl/dnnl.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>

#include "kernels/base/cgroup.h"
#include "kernels/base/error.h"

namespace trainerd::kernels {
namespace {

constexpr const char* kIsaNames[] = {"portable", "avx2", "avx512", "avx512_bf16"};

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  // With more threads than the quota, one would be stopped for part of every period, and all others would
  // wait for it.
  const double quota = std::ceil(base::read_cgroup_limits().cores);
  const int n = CPU_COUNT(&set);
  return std::max(1, quota > 0 && quota < n ? static_cast<int>(quota) : n);
}

bool library_has(dnnl_cpu_isa_t isa) { return (dnnl_get_effective_cpu_isa() & isa) == isa; }

/// The CPU must support all instructions that a build of the kernels uses, and oneDNN must support its set
/// too.
Isa widest_isa() {
#if defined(__x86_64__)
  const bool avx2 = library_has(dnnl_cpu_isa_avx2) && __builtin_cpu_supports("avx2") &&
                    __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && library_has(dnnl_cpu_isa_avx512_core) && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512 && library_has(dnnl_cpu_isa_avx512_core_bf16) && __builtin_cpu_supports("avx512bf16") &&
      __builtin_cpu_supports("avx512vbmi"))
    return Isa::avx512_bf16;
  if (avx2) return avx512 ? Isa::avx512 : Isa::avx2;
#endif
  return Isa::portable;
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
const char* to_string(Isa isa) { return kIsaNames[static_cast<std::size_t>(isa)]; }

bool parse_isa(std::string_view text, Isa& isa) {
  for (std::size_t i = 0; i < std::size(kIsaNames); ++i)
    if (text == kIsaNames[i]) return isa = static_cast<Isa>(i), true;
  return false;
}

Target detect_cpu(int threads, Isa most) {
  Target target;
  target.name = processor_name();
  const dnnl_version_t* library = dnnl_version();
  target.gemm_library = "oneDNN " + std::to_string(library->major) + "." + std::to_string(library->minor) +
                        "." + std::to_string(library->patch);
  target.threads = threads > 0 ? threads : usable_cores();
  target.isa = std::min(most, widest_isa());
  target.bf16_gemm = most == Isa::avx512_bf16 && library_has(dnnl_cpu_isa_avx512_core_bf16);
  target.amx = target.bf16_gemm && library_has(dnnl_cpu_isa_avx512_core_amx);
  return target;
}

void limit_gemm_library(Isa most) {
  constexpr dnnl_cpu_isa_t kLimits[] = {dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core};
  if (most == Isa::avx512_bf16) return;
  if (dnnl_set_max_cpu_isa(kLimits[static_cast<std::size_t>(most)]) != dnnl_success)
    throw base::device_error(std::string("oneDNN cannot be limited to ") + to_string(most) +
                             ": it was built without that, or was in use before");
}

}  // namespace trainerd::kernels
