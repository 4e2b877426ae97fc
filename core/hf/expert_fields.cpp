// Fields of a config.json that say which layers have experts, and how wide they are.

#include <algorithm>

#include "core/hf/config_values.h"
#include "kernels/ops/experts.h"

namespace trainerd::core::hf {

using nlohmann::json;

Field expert_size_field(const std::string& name, std::int64_t job::ExpertOptions::*option) {
  return {name,
          [name, option](Reading& r, const json* value) {
            if (absent(value)) return r.problem(name, "is missing");
            if (const auto size = read_size(r, name, *value)) r.model.experts.*option = *size;
          },
          [name, option](Writing& w) { w.out[name] = w.model.experts.*option; }};
}

std::vector<Field> renamed_expert_size_field(const std::string& name, const std::string& newer,
                                             std::int64_t job::ExpertOptions::*option) {
  Field first = expert_size_field(name, option), second = expert_size_field(newer, option);
  first.read = [required = first.read, newer](Reading& r, const json* value) {
    if (!absent(value) || find(r.json, newer) == nullptr) required(r, value);
  };
  second.read = [required = second.read, name](Reading& r, const json* value) {
    if (absent(value)) return;
    if (find(r.json, name) != nullptr && *find(r.json, name) != *value)
      return r.problem(name,
                       "is " + find(r.json, name)->dump() + ", and beside it there is " + value->dump());
    required(r, value);
  };
  second.write = [](Writing&) {};
  return {first, second};
}

Field normalise_field(const std::string& name, bool fallback) {
  return {name,
          [name, fallback](Reading& r, const json* value) {
            if (const auto flag = read_flag(r, name, value, fallback)) r.model.experts.normalise = *flag;
          },
          [name](Writing& w) { w.out[name] = w.model.experts.normalise; }};
}

std::vector<Field> expert_width_fields(const std::string& dense, const std::string& expert) {
  Field width = expert_size_field(expert, &job::ExpertOptions::ffn);
  width.write = [expert](Writing& w) { w.out[expert] = job::expert_ffn(w.model); };
  return {{dense,
           [dense](Reading& r, const json* value) {
             if (absent(value)) return;  // `complete` has a problem if a layer is dense
             if (const auto size = read_size(r, dense, *value)) r.model.ffn = *size;
           },
           [dense](Writing& w) {
             w.out[dense] = w.model.ffn;
             if (job::expert_layers(w.model) == w.model.layers) keep(w, dense);  // of no layer
           }},
          width};
}

Field shared_experts_field(const std::string& name, const std::string& expert_width, std::int64_t fallback) {
  return {name,
          [name, expert_width, fallback](Reading& r, const json* value) {
            const json* width = find(r.json, expert_width);
            if (absent(width) || !width->is_number_integer()) return;  // another field's problem
            if (value != nullptr && (*value == 0 || value->is_null())) return;
            const auto count = value == nullptr ? fallback : read_size(r, name, *value).value_or(1);
            r.model.experts.shared_ffn = count * width->get<int>();
          },
          [name](Writing& w) { w.out[name] = w.model.experts.shared_ffn / job::expert_ffn(w.model); }};
}

Field expert_scale_field(const std::string& name, double fallback) {
  return {name,
          [name, fallback](Reading& r, const json* value) {
            r.model.experts.scale = absent(value) ? fallback : read_real(r, name, *value).value_or(fallback);
          },
          [name](Writing& w) { w.out[name] = w.model.experts.scale; }};
}

Field dense_layers_field(const std::string& name, std::int64_t fallback) {
  return {name,
          [name, fallback](Reading& r, const json* value) {
            r.model.experts.dense_layers = fallback;
            if (absent(value)) return;
            if (!value->is_number_integer() || *value < 0)
              return r.problem(name, "expected an integer of 0 or more, found " + shown(*value));
            r.model.experts.dense_layers = value->get<std::int64_t>();
          },
          [name](Writing& w) { w.out[name] = w.model.experts.dense_layers; }};
}

std::vector<Field> sparse_layer_fields() {
  const auto read = [](Reading& r, const json* step) {
    job::ExpertOptions& e = r.model.experts;
    if (!absent(step)) e.every = read_size(r, "decoder_sparse_step", *step).value_or(1);
    const json* dense = find(r.json, "mlp_only_layers");
    if (absent(dense)) return;
    const auto numbers = [](const json& list) {
      return list.is_array() && std::all_of(list.begin(), list.end(), [](const json& layer) {
               return layer.is_number_integer() && layer >= 0;
             });
    };
    if (!numbers(*dense))
      return r.problem("mlp_only_layers", "expected a list of layers, found " + shown(*dense));
    // Layers that are dense by the step alone may be left out of the list.
    const auto listed = [&](std::int64_t layer) {
      return std::find(dense->begin(), dense->end(), layer) != dense->end();
    };
    while (listed(e.dense_layers) || (e.dense_layers + 1) % e.every != 0) {
      if (std::none_of(dense->begin(), dense->end(), [&](const json& l) { return l >= e.dense_layers; }))
        break;
      ++e.dense_layers;
    }
    for (const json& layer : *dense)
      if (layer >= e.dense_layers && (layer.get<std::int64_t>() + 1) % e.every == 0)
        return r.problem("mlp_only_layers", shown(*dense) +
                                                " is not available: the first layers can have dense MLPs, "
                                                "and all but every decoder_sparse_step-th");
  };
  return {
      {"decoder_sparse_step", read, [](Writing& w) { w.out["decoder_sparse_step"] = w.model.experts.every; }},
      {"mlp_only_layers", [](Reading&, const json*) {},
       [](Writing& w) {
         json dense = json::array();
         for (std::int64_t layer = 0; layer < w.model.experts.dense_layers; ++layer) dense.push_back(layer);
         w.out["mlp_only_layers"] = dense;
       }}};
}

std::vector<Field> group_fields(std::int64_t count, std::int64_t top) {
  using Size = std::int64_t job::ExpertOptions::*;
  const auto size = [](const std::string& name, Size option, std::int64_t fallback) -> Field {
    return {name,
            [name, option, fallback](Reading& r, const json* value) {
              r.model.experts.*option =
                  absent(value) ? fallback : read_size(r, name, *value).value_or(fallback);
            },
            [name, option](Writing& w) { w.out[name] = w.model.experts.*option; }};
  };
  Field chosen = size("topk_group", &job::ExpertOptions::top_groups, top);
  chosen.read = [read = chosen.read](Reading& r, const json* value) {
    read(r, value);
    job::ExpertOptions& e = r.model.experts;
    if (e.groups == 1) e.top_groups = 1;
    if (e.groups > kernels::kMostExpertGroups)
      r.problem("n_group", std::to_string(e.groups) + " groups are more than the " +
                               std::to_string(kernels::kMostExpertGroups) + " of a job");
    else if (e.groups > 1 && e.groups == e.count && e.score == job::RouterScore::sigmoid)
      r.problem("n_group", "leaves one expert in a group, and the family judges a group by its two best");
    else if (e.groups > 1 && (e.count % e.groups != 0 || e.top_groups > e.groups ||
                              e.top_groups * (e.count / e.groups) < e.per_token))
      r.problem("n_group", std::to_string(e.groups) + " groups of which a token has " +
                               std::to_string(e.top_groups) + " do not fit " + std::to_string(e.count) +
                               " experts");
  };
  return {size("n_group", &job::ExpertOptions::groups, count), chosen};
}

std::vector<Field> predictors_fields(const std::string& name, const std::string& newer) {
  const auto read = [name, newer](Reading& r, const json* value) {
    if (absent(value)) value = find(r.json, newer);
    r.further_layers = 1;
    if (absent(value)) return;
    r.further_layers = 0;
    if (*value == 0) return;
    r.further_layers = read_size(r, name, *value).value_or(0);
    r.notes.push_back(name + " is " + shown(*value) +
                      ": layers that predict further tokens are left out, as in transformers' own class");
  };
  return {{name, read, [name](Writing& w) { w.out[name] = 0; }},
          {newer, [](Reading&, const json*) {}, [](Writing&) {}}};
}

}  // namespace trainerd::core::hf
