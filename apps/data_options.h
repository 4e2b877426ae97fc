#pragma once

#include <CLI/CLI.hpp>

#include "apps/commands.h"

namespace trainerd::apps {

/// Adds `prepare` to the subcommand `data`. Its arguments go to `args`.
CLI::App* add_data_prepare(CLI::App& data, DataPrepareArgs& args);

}  // namespace trainerd::apps
