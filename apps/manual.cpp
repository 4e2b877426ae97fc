#include <filesystem>
#include <system_error>

#include "apps/commands.h"
#include "apps/completion.h"
#include "apps/exit_codes.h"
#include "apps/man.h"
#include "apps/output.h"
#include "kernels/base/error.h"

namespace trainerd::apps {

int man_command(const CommandHelp& root, const ManArgs& args) {
  const std::string name = args.page.empty() ? "trainerd" : "trainerd-" + args.page;
  for (const ManPage& page : man_pages(root)) {
    if (args.out.empty()) {
      if (page.name == name) print(page.text);
      continue;
    }
    const std::string section = std::to_string(page.section);
    const std::filesystem::path folder = std::filesystem::path(args.out) / ("man" + section);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw base::spec_error("--out: cannot make " + folder.string() + ": " + error.message());
    write_file("--out", folder / (page.name + "." + section), page.text);
  }
  return kExitDone;
}

int completion_command(const std::string& shell) {
  print(completion_script(shell));
  return kExitDone;
}

int complete_command(const CommandHelp& root, const std::vector<std::string>& words) {
  print(completions(root, words));
  return kExitDone;
}

}  // namespace trainerd::apps
