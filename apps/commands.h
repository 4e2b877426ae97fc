#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_tree.h"
#include "apps/nodes.h"

namespace trainerd::apps {

// One function for each subcommand, each in the file of its name. They return the exit status of success, or
// throw.

struct RunArgs {
  std::string job;
  std::vector<std::string> overrides;  ///< "a.b=value"
  NodeArgs nodes;
  std::string command;             ///< the whole command line
  std::vector<std::string> words;  ///< its words
  bool fresh = false;              ///< an earlier run's output is moved aside
  std::string rates;               ///< a cluster with this machine's rates; empty: no step time is predicted
  /// In place of metrics.listen; on nodes but the first, what makes them serve metrics.
  std::string metrics_listen;
  std::int64_t stop_after = 0;  ///< the run saves and stops after this step; 0: it does not
  std::optional<std::string>
      max_time;  ///< a duration after which the run has saved and stopped; none: no limit
};
int run_command(const RunArgs& args);

struct ValidateArgs {
  std::string job;
  std::vector<std::string> overrides;
  bool json = false;
  std::string svg;           ///< an SVG file to write the grid's svg to; empty: none
  std::string schedule_svg;  ///< the same for the schedule's
};
/// Prints the resolved job and where its ranks are, as YAML (with comments) or JSON.
int validate_command(const ValidateArgs& args);

/// Prints the JSON Schema of a job.
int schema_command();

struct ManArgs {
  std::string page;  ///< a subcommand, "job", or empty: trainerd(1)
  std::string out;   ///< a directory to write every page into; empty: `page` goes to standard output
};
/// Prints a man page, or writes all as OUT/man1/trainerd.1 and so on.
int man_command(const CommandHelp& root, const ManArgs& args);
/// Prints the completion script of a shell.
int completion_command(const std::string& shell);
/// Prints what may stand in place of the last of `words`: for the scripts.
int complete_command(const CommandHelp& root, const std::vector<std::string>& words);

struct SimulateArgs {
  std::string job;
  std::vector<std::string> overrides;  ///< of the job, and "cluster.failures.KEY=VALUE"
  bool json = false;
  std::string svg, trace;     ///< files to write; empty: none
  std::vector<double> costs;  ///< ms of forward, input and weight gradient, transfer; empty: the plan's
  double jitter = 0;
  std::vector<std::string> stragglers;  ///< "RANK=FACTOR"
  int steps = 20;                       ///< sampled with jitter
  bool failures = false;
  std::optional<double> step_seconds, checkpoint_bytes, save_seconds;  ///< in place of the plan's
  double weeks = 8;
  std::int64_t runs = 100;
  std::uint64_t seed = 0;
  std::string calibrate;  ///< as of plan
};
/// Without `failures` one step, else weeks of interruptions.
int simulate_command(const SimulateArgs& args);

struct PlanArgs {
  std::string job;
  std::vector<std::string> overrides;
  std::string cluster;  ///< over the job's cluster.preset; empty: the job's own
  bool json = false;
  double tokens = 0;      ///< budget to train on; 0: none
  std::string calibrate;  ///< seconds to measure this machine for; empty: its rates are of the cluster's file
  bool search = false;    ///< for the best layouts, in place of planning the job's own
  std::string out;        ///< a file to write the chosen job to; empty: standard output
};
/// Prints the plan, or what the search found. The status is that of a CapacityError when the job does not
/// fit.
int plan_command(const PlanArgs& args);

struct SweepArgs {
  std::string sweep;
  std::vector<std::string> overrides;  ///< of the base
  std::string output;                  ///< over the file's; empty: the file's
  bool dry = false;                    ///< print the jobs and what the planner says of them
};
/// Runs the jobs that are not done. The status is 0 when none of them failed, or that of the first that did;
/// that of a CapacityError when all are refused.
int sweep_command(const SweepArgs& args);

struct SubmitArgs {
  std::string job;
  std::vector<std::string> overrides;
  std::int64_t nodes = -1;                    ///< over cluster.nodes; -1: the job's own
  bool dry = false;                           ///< print the script alone
  bool test_only = false;                     ///< ask when it could start
  bool share = false;                         ///< a part of each node
  std::string partition, account, qos, time;  ///< of sbatch; empty: its defaults
  std::string save_before;                    ///< a duration before the time limit; empty: the script's own
  std::int64_t requeues = -1;                 ///< at most; -1: the script's own
  std::vector<std::string> sbatch;            ///< more options, "--name=value"
  /// Of `trainerd run`; empty: not given.
  std::string interface, rates, metrics_listen, rendezvous_timeout;
  std::string command;  ///< the whole command line
};
/// Plans a job, writes its batch script and submits it to Slurm. Throws CapacityError when it does not fit.
int submit_command(const SubmitArgs& args);

struct CalibrateArgs {
  std::string out;  ///< a file; empty: standard output
  std::string device = "cpu";
  double seconds = 40;
  std::int64_t threads = 1;
  std::int64_t ranks = 0;  ///< 0: as many as there are cores for
};
/// Measures this machine for the planner and writes its cluster file.
int calibrate_command(const CalibrateArgs& args);

struct DataInspectArgs {
  std::string path;
  std::string format;        ///< "text", "tokens", or empty: by each file's header or name
  std::string dtype;         ///< of token files without a header: a word of data.dtype; empty: not stated
  std::int64_t vocab = 0;    ///< ids must be less; 0: any
  bool all = false;          ///< read all of every file
  std::int64_t seq_len = 0;  ///< show how full samples of it are; 0: do not
  std::string tokenizer;     ///< a file or "bytes"; empty: as dataset.json says
  bool json = false;
};
/// The status is that of a DataError when a run would refuse a file.
int data_inspect_command(const DataInspectArgs& args);
struct DataVerifyArgs {
  std::vector<std::string> paths;
  std::string format, dtype;  ///< as above
  std::int64_t vocab = 0;
};
/// Reads everything. The status is that of a DataError when something is wrong.
int data_verify_command(const DataVerifyArgs& args);

struct DataPrepareArgs {
  std::vector<std::string> inputs;
  std::string out;
  std::string tokenizer = "bytes";
  std::string format;      ///< "text", "jsonl", or empty: by the files' names
  std::string field;       ///< of JSON lines; empty: text, messages with `chat`, prompt with `completion`
  std::string chat;        ///< name of a template
  std::string completion;  ///< of JSON lines: what follows the prompt
  bool pairs = false;      ///< JSON lines of a prompt and two answers
  std::int64_t pair_tokens = 0;  ///< longer pairs are left out; 0: none is
  std::string dtype;             ///< a word of data.dtype; empty: the narrowest that fits
  std::string eos;  ///< the text of the token that ends a document; empty: as the tokenizer's files say
  bool split_documents = false;  ///< blank lines part documents
  bool append_eos = false, no_append_eos = false;
  bool add_special_tokens = false, specials_as_text = false;
  std::int64_t workers = 0;  ///< 0: one for each core
};
/// Encodes texts and writes token files.
int data_prepare_command(const DataPrepareArgs& args);

struct CheckpointArgs {
  std::string path;  ///< of a run, of its checkpoints, or of one checkpoint
  bool json = false;
  bool statistics = false;             ///< of `show`: of the values too
  std::string second;                  ///< of `diff`
  double tolerance = 0;                ///< of `diff`: relative
  std::vector<std::string> paths;      ///< of `merge`
  std::string out;                     ///< of `reshard` and `merge`
  std::vector<std::string> overrides;  ///< of `reshard`
};
int checkpoint_list_command(const CheckpointArgs& args);
/// Every complete one; throws CheckpointError, after printing the others, when one is not whole.
int checkpoint_verify_command(const CheckpointArgs& args);
/// Verifies the newest, then prints what it holds.
int checkpoint_show_command(const CheckpointArgs& args);
/// Whether two hold the same tensors, of whatever layouts: 0, or kExitDifferent.
int checkpoint_diff_command(const CheckpointArgs& args);
/// Writes what another layout would have saved.
int checkpoint_reshard_command(const CheckpointArgs& args);
/// Writes the mean of several.
int checkpoint_merge_command(const CheckpointArgs& args);

struct ImportArgs {
  std::string from;  ///< a Hugging Face directory
  std::string out;   ///< the checkpoint's directory
};
/// Writes a checkpoint of the directory's weights and prints the `model` section of a job that begins from
/// it.
int import_command(const ImportArgs& args);

struct ExportArgs {
  std::string from;            ///< a checkpoint, or a run's output
  std::string out;             ///< the Hugging Face directory
  std::string dtype;           ///< "fp32" or "bf16"; empty: as the checkpoint has it
  std::string max_shard_size;  ///< "5GB"; empty: that
  bool no_tokenizer = false;
  bool ema = false;  ///< the average of the weights in their place
  // Of a checkpoint of adapters.
  bool adapter = false;
  bool merge = false;
  std::string base;  ///< where the weights are beside which they were trained; empty: where they were
};
int export_command(const ExportArgs& args);

struct TopArgs {
  /// A run's output directory, or the address of its metrics; by default that of metrics.listen's default.
  std::string target = "http://127.0.0.1:9464";
  bool once = false;  ///< print it once, in place of drawing again and again
};
/// Shows a run on the terminal until q is pressed. The status after a signal is 128 and its number.
int top_command(const TopArgs& args);

struct ReportArgs {
  std::vector<std::string> directories;  ///< of runs; one: its own report
  std::string out;                       ///< a file; empty: standard output
};
/// Writes one HTML page of one run, or of several compared.
int report_command(const ReportArgs& args);

/// Given by the agent alone: its descriptors are `control`, and from `control` + 1 on those of its
/// core::run::WorkerMemory in their order.
struct WorkerArgs {
  int control = -1;
  int segments = 0;
  int world = 0;    ///< 1: there is one
  int flights = 0;  ///< 1: there is one
  int held = 0;
  long parent = 0;  ///< the agent's process id
  std::int64_t rank = 0;
};
int worker_command(const WorkerArgs& args);

}  // namespace trainerd::apps
