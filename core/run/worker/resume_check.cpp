#include "core/run/worker/resume_check.h"

#include <utility>

#include "core/spec/changes.h"
#include "io/tokens/dataset_info.h"
#include "io/tokens/token_source.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// They wait for storage, not for cores.
constexpr int kReadThreads = 16;

// Entries of a checkpoint's identity. The first is all that versions before content was compared have.
constexpr const char* kFiles = "data";
constexpr const char* kContent = "data.content";
constexpr const char* kValid = "data.valid";

std::optional<std::string> entry(const io::TrainingState& saved, const char* key) {
  const auto it = saved.identity.find(key);
  return it == saved.identity.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace

DataSeen look_at_data(const job::JobSpec& job) {
  DataSeen seen;
  const io::TokenSource train(job.data.train, job.data, job.model.seq_len, job.model.vocab, job.seed,
                              io::SampleOrder::shuffled);
  seen.files = train.fingerprint();
  seen.content = train.check_samples(kReadThreads);
  if (job.evaluate.every == 0) return seen;
  io::check_one_tokenizer(job.data, job.model.vocab);
  const io::TokenSource valid(job.data.valid, job.data, job.model.seq_len, job.model.vocab, job.seed,
                              io::SampleOrder::in_order, io::kValidStream);
  seen.valid = data_text(valid.fingerprint(), valid.check_samples(kReadThreads));
  return seen;
}

std::string data_text(const std::string& files, const std::string& content) {
  return content.empty() ? files : files + ", content " + content;
}

void record_data(const DataSeen& seen, io::TrainingState& state) {
  state.identity[kFiles] = seen.files;
  state.identity[kContent] = seen.content;
  if (!seen.valid.empty()) state.identity[kValid] = seen.valid;
}

ResumedData resumed_data(const std::string& path, const io::TrainingState& saved, const DataSeen& now,
                         io::DataChange on_change) {
  ResumedData resumed{saved.order_start, saved.order_stream, {}};
  const auto notice = [&](io::NoticeKind kind, const std::string& message, std::vector<std::string> details) {
    resumed.notices.push_back({kind, saved.step, message, std::move(details)});
  };
  const auto files = entry(saved, kFiles), content = entry(saved, kContent), valid = entry(saved, kValid);
  std::string differs;
  if (files != now.files)
    differs = "data: the checkpoint has " + files.value_or("none on record") + ", the job " + now.files;
  else if (content && *content != now.content)
    differs = "data: the checkpoint has content " + *content + ", the job " + now.content +
              " in files of the same names and sizes";
  if (!differs.empty() && on_change == io::DataChange::refuse)
    throw base::checkpoint_error("the job cannot resume from " + path +
                                 ", which was trained on other data:\n  " + differs +
                                 "\n  restore the files of data.train; or set data.on_change: continue to go "
                                 "on with the new data, in a "
                                 "new order; or give the job another `output` to start anew");
  if (!differs.empty()) {
    resumed.order_start = saved.cursor;
    ++resumed.order_stream;
    notice(io::NoticeKind::change,
           "the training data changed: its samples follow in a new order, from the start of an epoch",
           {differs});
  } else if (!content && !now.content.empty()) {
    notice(io::NoticeKind::warning,
           "the checkpoint records the names and sizes of its data, which agree, and not its content, which "
           "was not compared",
           {});
  }
  if (valid && !now.valid.empty() && *valid != now.valid)
    notice(io::NoticeKind::change,
           "the validation data changed: evaluations before and after it cannot be compared",
           {"data.valid: the checkpoint has " + *valid + ", the job " + now.valid});
  return resumed;
}

std::optional<io::NoticeRecord> job_changes(const io::TrainingState& saved, const std::string& earlier_job,
                                            const job::JobSpec& now) {
  const std::string& was = saved.job.empty() ? earlier_job : saved.job;
  if (was.empty()) return std::nullopt;
  const auto changes = spec::changed_keys(was, now);
  if (!changes)
    return io::NoticeRecord{io::NoticeKind::warning,
                            saved.step,
                            "the job of the checkpoint cannot be read, so changed keys are not listed",
                            {}};
  if (changes->empty()) return std::nullopt;
  io::NoticeRecord notice{io::NoticeKind::change, saved.step, {}, {}};
  notice.message = std::to_string(changes->size()) +
                   (changes->size() == 1 ? " key of the job" : " keys of the job") + " changed since step " +
                   std::to_string(saved.step);
  for (const spec::KeyChange& change : *changes) notice.details.push_back(spec::to_text(change));
  return notice;
}

}  // namespace trainerd::core::run
