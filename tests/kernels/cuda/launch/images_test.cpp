// The devices that a build has kernels for. Host code: runs without CUDA.

#include "kernels/cuda/launch/images.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

using trainerd::kernels::cuda::image_for;

namespace {

/// The architectures of the preset for all GPUs, comma-separated.
std::string preset_architectures() {
  std::ifstream file(TRAINERD_SOURCE_DIR "/CMakePresets.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string key = "\"CMAKE_CUDA_ARCHITECTURES\": \"";
  const std::size_t begin = text.find(key) + key.size();
  REQUIRE(begin > key.size());
  std::string list = text.substr(begin, text.find('"', begin) - begin);
  std::replace(list.begin(), list.end(), ';', ',');
  return list;
}

}  // namespace

TEST_CASE("machine code runs on its major version from its minor version on", "[images]") {
  CHECK(image_for("80-real", 80) == "80-real");
  CHECK(image_for("80-real", 89) == "80-real");
  CHECK(image_for("86-real", 80).empty());
  CHECK(image_for("80-real", 90).empty());
  CHECK(image_for("80-real,100-real", 103) == "100-real");
  CHECK(image_for("100-real", 110).empty());
  CHECK(image_for("", 90).empty());
}

TEST_CASE("architecture-specific images run on one version, family-specific ones on a family", "[images]") {
  CHECK(image_for("90a-real", 90) == "90a-real");
  CHECK(image_for("100a-real", 103).empty());
  CHECK(image_for("100a", 103).empty());
  CHECK(image_for("100f-real", 103) == "100f-real");
  CHECK(image_for("103f-real", 100).empty());
  CHECK(image_for("120f", 130).empty());
}

TEST_CASE("PTX runs on every later version", "[images]") {
  CHECK(image_for("80-virtual", 103) == "80-virtual");
  CHECK(image_for("90", 121) == "90");
  CHECK(image_for("90-virtual", 89).empty());
  CHECK(image_for("100-virtual,90a-real", 90) == "90a-real");
}

TEST_CASE("an invalid architecture is a build error", "[images]") {
  CHECK_THROWS_AS(image_for("native", 90), std::logic_error);
  CHECK_THROWS_AS(image_for("sm_90", 90), std::logic_error);
}

TEST_CASE("the preset for all GPUs has machine code for every data center GPU from A100 to B300",
          "[images]") {
  const std::string preset = preset_architectures();
  for (const int sm : {80, 86, 89, 90, 100, 103, 120, 121}) {
    CAPTURE(preset, sm);
    const std::string image = image_for(preset, sm);
    CHECK_FALSE(image.empty());
    CHECK(image.find("virtual") == std::string::npos);
  }
}
