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

}  // namespace trainerd::apps
