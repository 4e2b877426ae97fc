# Writes `file`, which defines core::version::commit() for the tree `source`.
include(${CMAKE_CURRENT_LIST_DIR}/../../deploy/package_commit.cmake)
file(CONFIGURE OUTPUT ${file} CONTENT [[#include "core/version/version.h"

std::string trainerd::core::version::commit() { return "@commit@"; }
]] @ONLY)
