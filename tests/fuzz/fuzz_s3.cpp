#include <chrono>
#include <cstdint>
#include <string>

#include "io/s3/credentials.h"
#include "io/s3/errors.h"
#include "io/s3/settings.h"
#include "io/s3/xml.h"
#include "kernels/base/error.h"

// An S3 reply or a profile file of any bytes: parsed parts lie inside the input, and only a SpecError may be
// thrown.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainerd;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string_view entry : io::xml_elements(text, "Contents")) {
    if (entry.data() < text.data() || entry.data() + entry.size() > text.data() + text.size())
      __builtin_trap();
    if (const auto key = io::xml_text(entry, "Key"))
      if (io::url_decoded(*key).size() > key->size()) __builtin_trap();
  }
  io::status_text({.status = 400, .body = text});
  io::is_worth_retry({.status = 200, .body = text});
  io::profile_values(text, "default");
  try {
    io::parse_utc(text);
  } catch (const base::SpecError&) {}
  return 0;
}
