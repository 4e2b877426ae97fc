#pragma once

#include <string>

namespace trainerd::core::version {

/// "0.1.0"
std::string release();
/// The commit that this program was built from: twelve digits, and "-changed" when the tree was not that
/// commit's; or "unknown".
std::string commit();
/// Both: "0.1.0+1a2b3c4d5e6f". Nodes of a job have the same, and a checkpoint records it.
std::string version();

}  // namespace trainerd::core::version
