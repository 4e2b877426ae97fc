#include "core/version/version.h"

namespace trainerd::core {

std::string version() { return TRAINERD_VERSION; }

}  // namespace trainerd::core
