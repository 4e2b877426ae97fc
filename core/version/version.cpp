#include "core/version/version.h"

namespace trainerd::core::version {

std::string release() { return TRAINERD_VERSION; }

std::string version() { return release() + "+" + commit(); }

}  // namespace trainerd::core::version
