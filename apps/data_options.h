#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "apps/commands.h"

namespace trainerd::apps {

/// Adds the options that say what files hold.
void add_data_kind(CLI::App& command, std::string& format, std::string& dtype, std::int64_t& vocab);
/// Adds `prepare` to the subcommand `data`. Its arguments go to `args`.
CLI::App* add_data_prepare(CLI::App& data, DataPrepareArgs& args);

}  // namespace trainerd::apps
