#pragma once

#include <string>
#include <vector>

#include "apps/command_tree.h"

namespace trainerd::apps {

struct ManPage {
  std::string name;  ///< "trainerd-run"
  int section = 1;
  std::string text;  ///< in the man macros of troff
};

/// Every page: trainerd(1), one of each subcommand, trainerd-job(5) of the keys of a job.
std::vector<ManPage> man_pages(const CommandHelp& root);

}  // namespace trainerd::apps
