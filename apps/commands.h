#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_tree.h"
#include "apps/nodes.h"

namespace trainerd::apps {

// One function per subcommand, each in the file with its name. They return the exit status, or throw.

struct RunArgs {
  std::string job;
  std::vector<std::string> overrides;  ///< "a.b=value"
  NodeArgs nodes;
  std::string command;             ///< the whole command line
  std::vector<std::string> words;  ///< its words
  bool fresh = false;              ///< move an earlier run's output aside
  std::string rates;               ///< cluster with this machine's rates; empty: no predicted step time
  /// Replaces metrics.listen. Nodes other than the first serve metrics only with this.
  std::string metrics_listen;
  std::int64_t stop_after = 0;          ///< save and stop after this step; 0: no
  std::optional<std::string> max_time;  ///< time by which the run has saved and stopped; none: no limit
};
int run_command(const RunArgs& args);

struct ValidateArgs {
  std::string job;
  std::vector<std::string> overrides;
  bool json = false;
  std::string svg;           ///< SVG file to write with the rank grid; empty: none
  std::string schedule_svg;  ///< the same for the schedule
};
/// Prints the resolved job and the placement of its ranks, as YAML (with comments) or JSON.
int validate_command(const ValidateArgs& args);

/// Prints the JSON Schema of a job.
int schema_command();

struct ManArgs {
  std::string page;  ///< a subcommand, "job", or empty: trainerd(1)
  std::string out;   ///< directory for all pages; empty: print `page`
};
/// Prints a man page, or writes all pages as OUT/man1/trainerd.1 and so on.
int man_command(const CommandHelp& root, const ManArgs& args);
/// Prints the completion script of a shell.
int completion_command(const std::string& shell);
/// Prints the candidates for the last of `words`. Called by the completion scripts.
int complete_command(const CommandHelp& root, const std::vector<std::string>& words);

struct SimulateArgs {
  std::string job;
  std::vector<std::string> overrides;  ///< of the job, and "cluster.failures.KEY=VALUE"
  bool json = false;
  std::string svg, trace;     ///< files to write; empty: none
  std::vector<double> costs;  ///< ms: forward, input gradient, weight gradient, transfer; empty: the plan's
  double jitter = 0;
  std::vector<std::string> stragglers;  ///< "RANK=FACTOR"
  int steps = 20;                       ///< number of steps sampled with jitter
  bool failures = false;
  std::optional<double> step_seconds, checkpoint_bytes, save_seconds;  ///< replace the plan's
  double weeks = 8;
  std::int64_t runs = 100;
  std::uint64_t seed = 0;
  std::string calibrate;  ///< as PlanArgs::calibrate
};
/// Simulates one step; with `failures`, weeks with interruptions.
int simulate_command(const SimulateArgs& args);

struct PlanArgs {
  std::string job;
  std::vector<std::string> overrides;
  std::string cluster;  ///< replaces the job's cluster.preset; empty: the job's own
  bool json = false;
  double tokens = 0;      ///< training budget in tokens; 0: none
  std::string calibrate;  ///< seconds to measure this machine; empty: use the cluster's rates
  bool search = false;    ///< search for the best layouts instead of planning the job's own
  std::string out;        ///< file for the chosen job; empty: standard output
};
/// Prints the plan or the search result. The exit status is that of a CapacityError if the job does not fit.
int plan_command(const PlanArgs& args);

struct SweepArgs {
  std::string sweep;
  std::vector<std::string> overrides;  ///< for the base job
  std::string output;                  ///< replaces the file's; empty: the file's
  bool dry = false;                    ///< only print the jobs and their plans
};
/// Runs the jobs that are not done. The exit status is 0 if none failed, else that of the first failure; that
/// of a CapacityError if all jobs are refused.
int sweep_command(const SweepArgs& args);

struct SubmitArgs {
  std::string job;
  std::vector<std::string> overrides;
  std::int64_t nodes = -1;                    ///< replaces cluster.nodes; -1: the job's own
  bool dry = false;                           ///< only print the script
  bool test_only = false;                     ///< only ask when it could start
  bool share = false;                         ///< use a part of each node
  std::string partition, account, qos, time;  ///< for sbatch; empty: its defaults
  std::string save_before;                    ///< duration before the time limit; empty: the script's default
  std::int64_t requeues = -1;                 ///< maximum; -1: the script's default
  std::vector<std::string> sbatch;            ///< more options, "--name=value"
  /// For `trainerd run`; empty: not given.
  std::string interface, rates, metrics_listen, rendezvous_timeout;
  std::string command;  ///< the whole command line
};
/// Plans a job, writes its batch script and submits it to Slurm. Throws CapacityError if it does not fit.
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
  std::string format;        ///< "text", "tokens"; empty: by each file's header or name
  std::string dtype;         ///< for token files without a header: a word of data.dtype; empty: not stated
  std::int64_t vocab = 0;    ///< ids must be smaller; 0: any
  bool all = false;          ///< read every file completely
  std::int64_t seq_len = 0;  ///< show how full samples of this length are; 0: do not
  std::string tokenizer;     ///< file or "bytes"; empty: from dataset.json
  bool json = false;
};
/// The exit status is that of a DataError if a run would refuse a file.
int data_inspect_command(const DataInspectArgs& args);
struct DataVerifyArgs {
  std::vector<std::string> paths;
  std::string format, dtype;  ///< as above
  std::int64_t vocab = 0;
};
/// Reads everything. The exit status is that of a DataError if there is a problem.
int data_verify_command(const DataVerifyArgs& args);

struct DataPrepareArgs {
  std::vector<std::string> inputs;
  std::string out;
  std::string tokenizer = "bytes";
  std::string format;      ///< "text", "jsonl"; empty: by the files' names
  std::string field;       ///< key of JSON lines; empty: text, messages with `chat`, prompt with `completion`
  std::string chat;        ///< name of a template
  std::string completion;  ///< key of JSON lines: the text after the prompt
  bool pairs = false;      ///< JSON lines with a prompt and two answers
  std::int64_t pair_tokens = 0;  ///< leave out longer pairs; 0: keep all
  std::string dtype;             ///< a word of data.dtype; empty: the narrowest that fits
  std::string eos;               ///< text of the end-of-document token; empty: from the tokenizer's files
  bool split_documents = false;  ///< blank lines separate documents
  bool append_eos = false, no_append_eos = false;
  bool add_special_tokens = false, specials_as_text = false;
  std::int64_t workers = 0;  ///< 0: one per core
};
/// Encodes texts and writes token files.
int data_prepare_command(const DataPrepareArgs& args);

struct CheckpointArgs {
  std::string path;  ///< of a run, its checkpoints directory, or one checkpoint
  bool json = false;
  bool statistics = false;             ///< for `show`: also statistics of the values
  std::string second;                  ///< for `diff`
  double tolerance = 0;                ///< for `diff`: relative
  std::vector<std::string> paths;      ///< for `merge`
  std::string out;                     ///< for `reshard` and `merge`
  std::vector<std::string> overrides;  ///< for `reshard`
};
int checkpoint_list_command(const CheckpointArgs& args);
/// Verifies every complete checkpoint. Throws CheckpointError, after printing the others, if one is damaged.
int checkpoint_verify_command(const CheckpointArgs& args);
/// Verifies the newest checkpoint, then prints its content.
int checkpoint_show_command(const CheckpointArgs& args);
/// Compares the tensors of two checkpoints with any layouts. Returns 0 if equal, else kExitDifferent.
int checkpoint_diff_command(const CheckpointArgs& args);
/// Writes the checkpoint as another layout would have saved it.
int checkpoint_reshard_command(const CheckpointArgs& args);
/// Writes the mean of several checkpoints.
int checkpoint_merge_command(const CheckpointArgs& args);

struct ImportArgs {
  std::string from;  ///< a Hugging Face directory
  std::string out;   ///< the checkpoint's directory
};
/// Writes a checkpoint with the directory's weights, and prints the `model` section of a job that starts from
/// it.
int import_command(const ImportArgs& args);

struct ExportArgs {
  std::string from;            ///< a checkpoint, or a run's output
  std::string out;             ///< the Hugging Face directory
  std::string dtype;           ///< "fp32" or "bf16"; empty: the checkpoint's
  std::string max_shard_size;  ///< "5GB"; empty: 5GB
  bool no_tokenizer = false;
  bool ema = false;  ///< export the weights' average instead
  // For a checkpoint of adapters:
  bool adapter = false;
  bool merge = false;
  std::string base;  ///< base weights of the adapters; empty: the path in the checkpoint
};
int export_command(const ExportArgs& args);

struct TopArgs {
  /// A run's output directory, or the address of its metrics; default: the default of metrics.listen.
  std::string target = "http://127.0.0.1:9464";
  bool once = false;  ///< print once instead of redrawing
};
/// Shows a run on the terminal until q is pressed. After a signal the exit status is 128 plus its number.
int top_command(const TopArgs& args);

struct ReportArgs {
  std::vector<std::string> directories;  ///< of runs; with one, its own report
  std::string out;                       ///< a file; empty: standard output
};
/// Writes an HTML page about one run, or comparing several.
int report_command(const ReportArgs& args);

/// Passed by the agent only. `control` is a descriptor; those of the agent's core::run::WorkerMemory follow
/// from `control` + 1 on, in order.
struct WorkerArgs {
  int control = -1;
  int segments = 0;
  int world = 0;    ///< 1: present
  int flights = 0;  ///< 1: present
  int held = 0;
  long parent = 0;  ///< process id of the agent
  std::int64_t rank = 0;
};
int worker_command(const WorkerArgs& args);

}  // namespace trainerd::apps
