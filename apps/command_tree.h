#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trainerd::apps {

/// An option or a positional argument, as the command line declares it.
struct OptionHelp {
  std::vector<std::string> names;  ///< "-h", "--help"; of a positional argument, its name alone: "JOB"
  std::string value;               ///< what stands for its value: "FILE", "NAME|FILE"; empty: a flag
  std::vector<std::string> words;  ///< the values it takes, where they are listed
  std::string help;
  std::string fallback;            ///< the default; empty: none
  std::vector<std::string> needs;  ///< names of options that it goes with
  int values = 0;                  ///< words of the command line that follow its name; 0: a flag
  bool required = false;
  bool many = false;  ///< a positional argument that may be given several times
};

/// A command and what is below it. Hidden ones are left out.
struct CommandHelp {
  std::string name;  ///< "run"
  std::string help;
  std::vector<OptionHelp> options, positionals;
  std::vector<CommandHelp> subcommands;
};

/// What the command line knows of itself. The man pages and the completion are made of this.
CommandHelp command_tree(const CLI::App& app);

}  // namespace trainerd::apps
