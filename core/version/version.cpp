#include "core/version/version.h"

namespace trainerd::core {

std::string release() { return TRAINERD_VERSION; }

std::string version() { return release() + "+" + commit(); }

}  // namespace trainerd::core
