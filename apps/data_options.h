#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "io/files/data_files.h"

namespace trainerd::apps {

/// Adds the options about the content of files.
void add_data_kind(CLI::App& command, std::string& format, std::string& dtype, std::int64_t& vocab);
/// Opens these files, also at s3://, for `readers` readers. Blocks are not cached on disk, because files are
/// read once.
io::DataFiles data_files_of(const std::vector<std::string>& paths, int readers = 1);
/// Adds `prepare` to the subcommand `data`. Its values go to `args`.
CLI::App* add_data_prepare(CLI::App& data, DataPrepareArgs& args);

}  // namespace trainerd::apps
