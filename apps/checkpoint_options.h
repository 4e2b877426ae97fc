#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "apps/commands.h"

namespace trainerd::apps {

using CheckpointCommand = int (*)(const CheckpointArgs&);

/// `trainerd checkpoint` with its subcommands; `choose` is called with the one that was given.
void add_checkpoint_commands(CLI::App& app, CheckpointArgs& args,
                             const std::function<void(CheckpointCommand)>& choose);

}  // namespace trainerd::apps
