#include "kernels/cuda/launch/images.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/error.h"

namespace trainerd::kernels::cuda {
namespace {

bool cut_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

bool runs(std::string_view entry, int sm_version) {
  std::string_view text = entry;
  const bool real_alone = cut_suffix(text, "-real"), virtual_alone = cut_suffix(text, "-virtual");
  const bool exact = cut_suffix(text, "a"), family = cut_suffix(text, "f");
  int version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  base::check(error == std::errc() && end == text.data() + text.size() && version >= 10,
              "an architecture is written as CMake does: 90a-real");
  if (exact) return sm_version == version;
  const bool same_major = sm_version / 10 == version / 10;
  if (family) return same_major && sm_version >= version;
  const bool by_code = !virtual_alone && same_major && sm_version >= version;
  const bool by_ptx = !real_alone && sm_version >= version;
  return by_code || by_ptx;
}

}  // namespace

std::string image_for(std::string_view compiled, int sm_version) {
  while (!compiled.empty()) {
    const std::size_t end = std::min(compiled.find(','), compiled.size());
    const std::string_view entry = compiled.substr(0, end);
    if (runs(entry, sm_version)) return std::string(entry);
    compiled.remove_prefix(std::min(end + 1, compiled.size()));
  }
  return "";
}

}  // namespace trainerd::kernels::cuda
