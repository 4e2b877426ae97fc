#pragma once

#include <CLI/CLI.hpp>

#include "apps/commands.h"

namespace trainerd::apps {

// Subcommands about weights. Their values go to `args`.

CLI::App* add_import(CLI::App& app, ImportArgs& args);
CLI::App* add_export(CLI::App& app, ExportArgs& args);

}  // namespace trainerd::apps
