#include "kernels/nvml/xid.h"

#include <algorithm>
#include <array>

namespace trainerd::kernels {
namespace {

using enum XidClass;

constexpr std::array kXids{
    Xid{8, program, "the GPU stopped processing"},
    Xid{11, program, "invalid or corrupted push buffer stream"},
    Xid{13, program, "graphics engine exception"},
    Xid{31, program, "GPU memory page fault"},
    Xid{32, program, "invalid or corrupted push buffer stream"},
    Xid{38, device, "driver firmware error"},
    Xid{43, program, "the GPU stopped processing"},
    Xid{45, program, "preemptive cleanup, because of an earlier error"},
    Xid{46, device, "the GPU stopped processing"},
    Xid{48, device, "double-bit ECC error"},
    Xid{61, device, "internal microcontroller breakpoint"},
    Xid{62, device, "internal microcontroller halt"},
    Xid{63, record, "ECC page retirement or row remapping was recorded"},
    Xid{64, device, "ECC page retirement or row remapping failed"},
    Xid{69, program, "graphics engine class error"},
    Xid{74, device, "NVLink error"},
    Xid{79, device, "the GPU has fallen off the bus"},
    Xid{92, record, "high rate of single-bit ECC errors"},
    Xid{93, record, "the InfoROM is near its limit of writes"},
    Xid{94, device, "contained ECC error"},
    Xid{95, device, "uncontained ECC error"},
    Xid{109, device, "context switch timeout"},
    Xid{110, device, "security fault"},
    Xid{119, device, "GSP RPC timeout"},
    Xid{120, device, "GSP error"},
    Xid{121, record, "C2C link error, corrected"},
    Xid{122, record, "SPI read failure"},
    Xid{123, record, "SPI write failure"},
    Xid{124, record, "SPI erase failure"},
    Xid{125, record, "InfoROM file system failure"},
    Xid{136, device, "link training failed"},
    Xid{137, program, "NVLink fabric access without privilege"},
    Xid{140, device, "unrecovered ECC error"},
    Xid{143, device, "GPU initialization failure"},
    Xid{144, device, "NVLink SAW error"},
    Xid{145, device, "NVLink RLW error"},
    Xid{146, device, "NVLink TLW error"},
    Xid{147, device, "NVLink TREX error"},
    Xid{148, device, "NVLink NVLPW_CTRL error"},
    Xid{149, device, "NVLink NETIR error"},
    Xid{150, device, "NVLink MSE error"},
    Xid{154, record, "the GPU's recovery action changed"},
};

}  // namespace

Xid xid_of(int number) {
  const auto* known =
      std::find_if(kXids.begin(), kXids.end(), [&](const Xid& x) { return x.number == number; });
  return known != kXids.end() ? *known : Xid{number, device, "see NVIDIA's catalogue of Xid errors"};
}

std::string text_of(const Xid& xid) { return "XID " + std::to_string(xid.number) + ": " + xid.meaning; }

}  // namespace trainerd::kernels
