#include "core/spec/field_table.h"
#include "io/tokens/source_files.h"

namespace trainerd::core::spec {
namespace {

constexpr double kMaxCacheBytes = 1e18, kMaxTokens = 1e18, kMaxToken = 2147483647;

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

namespace {

void add_documents(FieldTable& t, io::DataOptions& d, const std::string& idle) {
  t.choice(
       "data.packing", d.packing,
       {{"concatenate", io::Packing::concatenate},
        {"best_fit", io::Packing::best_fit},
        {"pairs", io::Packing::pairs}},
       "how documents become samples; concatenate: one behind the other, cut where a sample ends; "
       "best_fit: a sample holds whole documents, as full as they allow, and padding that does not "
       "count; only "
       "documents that are longer than a sample are cut; pairs: a sample is a chosen and a rejected "
       "answer, for "
       "`loss.dpo`, where it and `document_mask` are the default. For files that say where documents begin "
       "(Megatron's); of validation data too")
      .idle_if(!idle.empty(), idle);
  t.add("data.document_mask", &d.document_mask,
        "attention stays inside documents, and the first token of a document, which another one precedes, "
        "does "
        "not count in the loss")
      .idle_if(!idle.empty(), idle);
  t.add("data.reset_positions", &d.reset_positions, "positions count from the beginning of each document")
      .or_else("as `document_mask`")
      .idle_if(!idle.empty(), idle);
  t.add(
       "data.end_token", &d.end_token,
       "id of the token that ends a document, for `document_mask` and `reset_positions` in files that do not "
       "say where documents begin (Megatron's do); -1: none")
      .between(-1, kMaxToken)
      .idle_if(!d.document_mask && !d.reset_positions,
               idle.empty() ? "neither document_mask nor reset_positions asks where documents begin" : idle);
  t.add("data.max_documents", &d.max_documents,
        "documents that a sample may have, parts of documents included; one with more is an error that says "
        "how "
        "many. Each takes a little time and memory of every attention")
      .at_least(1)
      .or_else("`seq_len` / 16, at least 16")
      .idle_if(!d.document_mask, "only document_mask: true makes them sequences of their own");
}

}  // namespace

void add_cache(FieldTable& t, io::DataOptions& d) {
  const bool none = !io::reads_objects(d);
  const std::string idle = "no path of the data is at s3://";
  t.add("data.cache.directory", &d.cache_directory,
        "where each node keeps blocks of files at s3:// that it has read: a local directory, which ranks and "
        "runs share")
      .or_else("`/var/tmp/trainerd-cache-UID`")
      .idle_if(none || d.cache_bytes == 0, none ? idle : "bytes: 0 keeps none");
  t.add("data.cache.bytes", &d.cache_bytes,
        "size of that directory at most; those blocks go first that were not read for the longest time. 0: "
        "none are kept on disk")
      .between(0, kMaxCacheBytes)
      .idle_if(none, idle);
}

void add_sources(FieldTable& t, io::DataOptions& d, const std::string& idle) {
  t.add("data.sources", MapList(d.sources, fields_of_source),
        "in place of `train`: a blend of several sources. A resumed run may add, remove or reweight sources; "
        "each source continues after its samples that were already used")
      .or_else("none")
      .not_with("data.train",
                "data.train is given too: put its files into a source of their own, or leave one out",
                Says::anything)
      .idle_if(!idle.empty(), idle);
  t.add(
       "data.mask", &d.mask,
       "loss masks of `train`: files with a byte for each token, 1 where the prediction of this token counts "
       "in the loss and 0 where it does not; one for each file of `train`, in their order")
      .or_else(
          "`NAME.mask` beside `NAME.bin` where a `dataset.json` says `loss_mask`, else every token counts")
      .not_with("data.sources", "data.sources is given: name each source's masks in its own mask",
                Says::anything)
      .idle_if(!idle.empty(), idle);
  t.add("data.valid_mask", &d.valid_mask, "the same of `valid`")
      .or_else("as of `mask`")
      .idle_if(!idle.empty(), idle);
  add_documents(t, d, idle);
  t.add("data.valid_fraction", &d.valid_fraction,
        "in place of `valid`: this part of the training data's documents, chosen by a hash of each "
        "document's number, "
        "is for validation and never trained on; for token files that say where documents begin (Megatron's)")
      .from_below(0, 1)
      .not_with("data.valid", "data.valid is given too: leave one of them out")
      .not_with("loss.dpo.beta", "chooses single documents, which would part pairs: leave it out")
      .idle_if(!idle.empty(), idle);
}

}  // namespace trainerd::core::spec
