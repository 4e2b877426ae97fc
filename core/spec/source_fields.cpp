#include "core/spec/field_table.h"

namespace trainerd::core::spec {
namespace {

constexpr double kMaxTokens = 1e18;

std::vector<Field> fields_of_source(io::DataSource& s) {
  FieldTable t;
  t.add("path", &s.path, "its files, directories or glob patterns, as in `train`").needed();
  t.add("weight", &s.weight, "its share of the samples, beside the other weights; in any unit")
      .above(0)
      .needed();
  t.add("epochs", &s.epochs,
        "passes over it at most (`0.5`: half of it), over the whole run; then the others go on by their "
        "weights")
      .above(0)
      .or_else("any number");
  t.add("tokens", &s.tokens, "tokens that are taken of it at most, over the whole run")
      .between(1, kMaxTokens)
      .or_else("any number");
  t.add("mask", &s.mask, "its loss masks, as in `data.mask`").or_else("what a `dataset.json` says");
  return t.take();
}

}  // namespace

void add_sources(FieldTable& t, io::DataOptions& d, const std::string& idle) {
  t.add("data.sources", MapList(d.sources, fields_of_source),
        "in place of `train`: a blend of several sources. Sources that are added, taken away or weighed anew "
        "when a run goes on from a checkpoint each give what comes after the samples that were taken of them")
      .or_else("none")
      .idle_if(!idle.empty(), idle);
  t.add(
       "data.mask", &d.mask,
       "loss masks of `train`: files with a byte for each token, 1 where the prediction of this token counts "
       "in the loss and 0 where it does not; one for each file of `train`, in their order")
      .or_else(
          "`NAME.mask` beside `NAME.bin` where a `dataset.json` says `loss_mask`, else every token counts")
      .idle_if(!idle.empty(), idle);
  t.add("data.valid_mask", &d.valid_mask, "the same of `valid`")
      .or_else("as of `mask`")
      .idle_if(!idle.empty(), idle);
  t.add("data.valid_fraction", &d.valid_fraction,
        "in place of `valid`: this part of the training data's documents, chosen by a hash of each "
        "document's number, "
        "is for validation and never trained on; for token files that say where documents begin (Megatron's)")
      .from_below(0, 1)
      .idle_if(!idle.empty(), idle);
}

}  // namespace trainerd::core::spec
