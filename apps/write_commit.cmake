# Writes `file`, which defines apps::commit() for the tree `source`.
include(${CMAKE_CURRENT_LIST_DIR}/../deploy/package_commit.cmake)
file(CONFIGURE OUTPUT ${file} CONTENT [[#include "apps/commit.h"

std::string trainerd::apps::commit() { return "@commit@"; }
]] @ONLY)
