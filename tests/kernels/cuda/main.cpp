#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "kernels/backend/cuda_plugin.h"

int main(int argc, char** argv) {
  const std::string why = trainerd::kernels::why_no_cuda();
  if (!why.empty()) {
    std::printf("no GPU: no test was run (%s)\n", why.c_str());
    return 0;
  }
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  // What is about the CPU's instruction sets is not about this world.
  if (session.configData().testsOrTags.empty()) session.configData().testsOrTags.push_back("~[cpu]");
  return session.run();
}
