#pragma once

#include <string>
#include <vector>

#include "apps/command_tree.h"

namespace trainerd::apps {

struct ManPage {
  std::string name;  ///< "trainerd-run"
  int section = 1;
  std::string text;  ///< troff with man macros
};

/// All pages: trainerd(1), one per subcommand, and trainerd-job(5) about the keys of a job.
std::vector<ManPage> man_pages(const CommandHelp& root);

}  // namespace trainerd::apps
