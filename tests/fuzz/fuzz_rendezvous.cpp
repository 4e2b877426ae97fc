#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/base/socket.h"
#include "parallel/comm/rendezvous/store_frames.h"

// A rendezvous message of any bytes, and an endpoint of any text: parsed parts lie inside the input, and
// parsed values survive a round trip.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainerd;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (const auto request = parallel::frames::parse_request(bytes)) {
    if (5 + request->key.size() + request->value.size() != size) std::abort();
    if (parallel::frames::request(request->what, request->key, request->value).substr(4) != bytes)
      std::abort();
  }
  if (const auto endpoint = base::parse_endpoint(bytes)) {
    const auto again = base::parse_endpoint(endpoint->text());
    if (endpoint->host.empty() || endpoint->port == 0 || !again || again->host != endpoint->host ||
        again->port != endpoint->port)
      std::abort();
  }
  return 0;
}
