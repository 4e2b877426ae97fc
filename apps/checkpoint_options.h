#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "apps/commands.h"

namespace trainerd::apps {

using CheckpointCommand = int (*)(const CheckpointArgs&);

/// Adds `trainerd checkpoint` with its subcommands; `choose` is called with the one on the command line.
void add_checkpoint_commands(CLI::App& app, CheckpointArgs& args,
                             const std::function<void(CheckpointCommand)>& choose);

}  // namespace trainerd::apps
