#pragma once

#include <string>

namespace trainerd::apps {

/// Of the tree that this program was built from: twelve digits, and "-changed" when the tree was not that
/// commit's; or "unknown".
std::string commit();

}  // namespace trainerd::apps
