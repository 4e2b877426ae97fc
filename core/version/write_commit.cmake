# Writes `file`, which defines core::commit() for the tree `source`.
include(${CMAKE_CURRENT_LIST_DIR}/../../deploy/package_commit.cmake)
file(CONFIGURE OUTPUT ${file} CONTENT [[#include "core/version/version.h"

std::string trainerd::core::commit() { return "@commit@"; }
]] @ONLY)
