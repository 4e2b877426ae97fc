#include "parallel/layout/device_peaks.h"

namespace trainerd::parallel {
namespace {

struct Entry {
  const char* part;                   // substring of the driver's name
  double fp32, tf32, bf16, fp8, fp4;  // TFLOP/s
};

// From data sheets: dense, fp32 accumulation. The first match is used, so variants come before the base
// model.
constexpr Entry kPeaks[] = {
    {"H100 PCIe", 51, 378, 756, 1513, 0},
    {"H100 NVL", 60, 417.5, 835.5, 1671, 0},
    {"H100", 67, 494.5, 989, 1979, 0},
    {"H200 NVL", 60, 417.5, 835.5, 1671, 0},
    {"H200", 67, 494.5, 989, 1979, 0},
    {"GB300", 83, 1250, 2500, 5000, 15000},
    {"B300", 75, 1125, 2250, 4500, 13500},
    {"GB200", 80, 1250, 2500, 5000, 10000},
    {"B200", 75, 1125, 2250, 4500, 9000},
    {"A100", 19.5, 156, 312, 0, 0},
    {"L40S", 91.6, 183, 362, 733, 0},
    {"RTX 4090", 82.6, 82.6, 165.2, 330.3, 0},
    {"RTX 5090", 104.8, 104.8, 209.5, 419, 1676},
};

}  // namespace

PeakRates published_peaks(const std::string& device_name) {
  for (const Entry& e : kPeaks)
    if (device_name.find(e.part) != std::string::npos)
      return {e.fp32 * 1e12, e.tf32 * 1e12, e.bf16 * 1e12, e.fp8 * 1e12, e.fp4 * 1e12};
  return {};
}

}  // namespace trainerd::parallel
