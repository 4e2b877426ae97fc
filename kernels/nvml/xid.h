#pragma once

#include <cstdint>
#include <string>

namespace trainerd::kernels {

/// Whose an XID is, by NVIDIA's catalogue ("Xid Errors", deploy/xid-errors, R580): what has to be done about
/// it.
enum class XidClass : std::uint8_t {
  record,   ///< the driver has recorded or corrected something: nothing now
  program,  ///< a fault of the program, or what follows another error: it ends, the device stays
  device,   ///< of the device, its memory, firmware or links: it needs a reset, a repair or an exchange
};

struct Xid {
  int number = 0;
  XidClass whose = XidClass::device;
  const char* meaning = "";
};

/// Of the catalogue; one that this program does not know counts as the device's.
Xid xid_of(int number);
/// "XID 79: the GPU has fallen off the bus".
std::string text_of(const Xid& xid);

}  // namespace trainerd::kernels
