#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "io/files/data_files.h"

namespace trainerd::apps {

/// Adds the options that say what files hold.
void add_data_kind(CLI::App& command, std::string& format, std::string& dtype, std::int64_t& vocab);
/// What opens these files, at s3:// too, for so many readers; what is read of them once is not kept.
io::DataFiles data_files_of(const std::vector<std::string>& paths, int readers = 1);
/// Adds `prepare` to the subcommand `data`. Its arguments go to `args`.
CLI::App* add_data_prepare(CLI::App& data, DataPrepareArgs& args);

}  // namespace trainerd::apps
