#include "core/run/wire/slices_json.h"

#include <nlohmann/json.hpp>

#include "io/text/json.h"
#include "kernels/base/error.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::core::run {

using nlohmann::json;

json slices_to_json(const std::vector<io::TensorSlice>& slices) {
  json list = json::array();
  for (const io::TensorSlice& s : slices) {
    list.push_back({s.name, kernels::name_of(s.dtype), s.logical_shape, s.begin, s.shape, s.stored});
    if (s.xxh3) list.back().push_back(*s.xxh3);
  }
  return list;
}

std::vector<io::TensorSlice> slices_from(const json& list) {
  std::vector<io::TensorSlice> slices;
  for (const json& s : list) {
    const auto dtype = kernels::parse_dtype(s.at(1).get<std::string>());
    if (!dtype) throw base::comm_error("a slice of unknown dtype came in a message: " + io::text_of(s));
    slices.push_back({s.at(0), *dtype, s.at(2), s.at(3), s.at(4), s.at(5)});
    if (s.size() > 6) slices.back().xxh3 = s.at(6).get<std::uint64_t>();
  }
  return slices;
}

}  // namespace trainerd::core::run
