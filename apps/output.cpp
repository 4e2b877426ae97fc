#include "apps/output.h"

#include <cerrno>
#include <cstdio>
#include <stdexcept>

#include "kernels/base/error.h"

namespace trainerd::apps {

void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0)
    throw std::runtime_error("cannot write to standard output: " + base::errno_text(errno));
}

void write_file(const std::string& option, const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (file == nullptr || std::fclose(file) != 0 || !written)
    throw base::spec_error(option + ": cannot write " + path + ": " + base::errno_text(error));
}

}  // namespace trainerd::apps
