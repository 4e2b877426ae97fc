#include <CLI/CLI.hpp>
#include <exception>
#include <functional>
#include <iostream>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include "apps/checkpoint_options.h"
#include "apps/command_line.h"
#include "apps/command_tree.h"
#include "apps/commands.h"
#include "apps/data_options.h"
#include "apps/exit_codes.h"
#include "apps/generate.h"
#include "apps/known_words.h"
#include "apps/number_check.h"
#include "apps/output.h"
#include "apps/weights_options.h"
#include "core/version/version.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

/// The command line, bound to the arguments of each subcommand. `chosen_` runs the given one.
class CommandLine {
 public:
  CommandLine() {
    app_.set_version_flag("--version",
                          "trainerd " + core::version::release() + " (" + core::version::commit() + ")");
    app_.require_subcommand(1);

    CLI::App* run =
        app_.add_subcommand("run", "Train: run a job from its newest checkpoint, or from the start");
    add_job(*run, run_.job, run_.overrides);
    run->add_flag("--fresh", run_.fresh,
                  "Begin at step 1: the output directory of an earlier run is renamed to "
                  "<output>.old-YYYYmmdd-HHMMSS (UTC) first. Not for a "
                  "script that is run again after an interruption");
    NodeArgs& nodes = run_.nodes;
    // torchrun's names are accepted too.
    run->add_option("--nodes,--nnodes", nodes.nodes, "Nodes of the job: sets cluster.nodes")
        ->check(positive())
        ->type_name("N");
    run->add_option("--node,--node-rank", nodes.node,
                    "This node's number, from 0; read from Slurm in a Slurm job")
        ->check(not_negative())
        ->type_name("I");
    run->add_flag("--spare", nodes.spare,
                  "This is none of the nodes, but waits to take the place of one that is lost "
                  "(cluster.failures.spares); so does a node with a number after the last");
    run->add_option(
           "--rendezvous,--rdzv-endpoint", nodes.rendezvous,
           "Where the nodes meet: an address of node 0 and a free port, the same on all; by default "
           "node 0's host "
           "and a port made from the job's number under Slurm. With supervise.coordinator: where this "
           "agent serves when it leads; by default its own address and any free port")
        ->type_name("HOST:PORT");
    run->add_option("--rendezvous-timeout", nodes.timeout_seconds,
                    "Seconds until the last node must have come; default 300")
        ->check(between(0.1, 1e7))
        ->type_name("SECONDS");
    run->add_option("--interface", nodes.interface,
                    "Network interface (ib0), name or address by which other nodes reach this one's ranks; "
                    "default: that of "
                    "the route to node 0")
        ->type_name("NAME");
    run->add_option("--rates", run_.rates,
                    "A cluster with the operator rates of this machine: the step's time is predicted, and "
                    "held against the run")
        ->type_name("NAME|FILE");
    run->add_option("--metrics-listen", run_.metrics_listen,
                    "In place of metrics.listen on this node; nodes but the first serve metrics only with it")
        ->type_name("HOST:PORT");
    run->add_option(
           "--max-time", run_.max_time,
           "Save and stop before this much time has passed since the start of this process: 3h50m, 90m")
        ->type_name("DURATION");
    run->add_option("--stop-after", run_.stop_after,
                    "Save and stop, with status 0, soon after this step and its evaluation")
        ->check(positive())
        ->type_name("STEP");
    run->callback([this] { chosen_ = [this] { return run_command(run_); }; });

    CLI::App* sweep =
        app_.add_subcommand("sweep", "Run the jobs of a sweep that a YAML file describes, or go on with it");
    sweep->add_option("SWEEP", sweep_.sweep, "YAML file of the sweep")->required();
    sweep
        ->add_option("--set", sweep_.overrides,
                     "key.path=value: goes over the base job's file; may be repeated")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
    sweep->add_option("--output", sweep_.output, "Directory, over the sweep's own `output`")
        ->type_name("DIR");
    sweep->add_flag("--dry", sweep_.dry, "Print the jobs with the planner's verdict, and run none");
    sweep->callback([this] { chosen_ = [this] { return sweep_command(sweep_); }; });

    CLI::App* validate = app_.add_subcommand(
        "validate", "Check a job, print it with every default filled in, and its ranks' places");
    add_job(*validate, validate_.job, validate_.overrides);
    validate->add_flag("--json", validate_.json, "One JSON object: spec, ranks, groups, links");
    validate->add_option("--svg", validate_.svg, "Draw the grid into this SVG file")->type_name("FILE");
    validate
        ->add_option("--schedule-svg", validate_.schedule_svg,
                     "Draw the pipeline's schedule into this SVG file")
        ->type_name("FILE");
    validate->callback([this] { chosen_ = [this] { return validate_command(validate_); }; });

    CLI::App* schema = app_.add_subcommand(
        "schema", "Print the JSON Schema of a job, by which editors complete and check it");
    schema->callback([this] { chosen_ = [] { return schema_command(); }; });

    add_simulate();
    add_submit();

    CLI::App* plan = app_.add_subcommand(
        "plan", "Predict a job's memory, time and communication; needs none of its devices or data");
    add_job(*plan, plan_.job, plan_.overrides);
    plan->add_option("--cluster", plan_.cluster,
                     "Goes over cluster.preset: a built-in cluster or a YAML file")
        ->type_name("NAME|FILE");
    plan->add_flag("--json", plan_.json, "One JSON object");
    plan->add_option("--tokens", plan_.tokens, "Tokens to train on: adds days and device-hours")
        ->check(positive());
    add_calibrate(*plan, plan_.calibrate);
    CLI::Option* search =
        plan->add_flag("--search", plan_.search,
                       "The fastest layouts for the job's model, batch and number of ranks that fit");
    plan->add_option("--out", plan_.out, "Write the chosen job into this YAML file")
        ->type_name("FILE")
        ->needs(search);
    plan->callback([this] { chosen_ = [this] { return plan_command(plan_); }; });

    CLI::App* calibrate = app_.add_subcommand(
        "calibrate",
        "Measure this machine's operators and links, and write a cluster file for plan and simulate");
    calibrate->add_option("--out", calibrate_.out, "The file; without it, standard output")
        ->type_name("FILE");
    calibrate->add_option("--device", calibrate_.device, "What to measure")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    calibrate->add_option("--seconds", calibrate_.seconds, "To measure for, about: more is less noise")
        ->check(between(0.0, 3600.0))
        ->capture_default_str();
    calibrate
        ->add_option("--threads", calibrate_.threads, "Threads per rank, as `threads` of the jobs to plan")
        ->check(positive())
        ->capture_default_str();
    calibrate
        ->add_option("--ranks", calibrate_.ranks,
                     "Devices of the node; default: as many as the cores have room for")
        ->check(positive());
    calibrate->callback([this] { chosen_ = [this] { return calibrate_command(calibrate_); }; });

    add_views();

    CLI::App* data = app_.add_subcommand("data", "Look at training data, and prepare it");
    data->require_subcommand(1);
    CLI::App* inspect =
        data->add_subcommand("inspect", "Say what the data reader sees in a file or directory");
    inspect->add_option("PATH", inspect_.path, "File, directory or glob pattern")->required();
    add_data_kind(*inspect, inspect_.format, inspect_.dtype, inspect_.vocab);
    inspect->add_flag("--all", inspect_.all, "Read every id of every file, not samples");
    inspect
        ->add_option("--seq-len", inspect_.seq_len,
                     "Say how full samples of this many tokens are by data.packing")
        ->check(number("INT in [1 - 16777216]", 1, true, 1 << 24, "number from 1 to 16777216"));
    inspect
        ->add_option("--tokenizer", inspect_.tokenizer,
                     "Decode the first tokens by it; default: the file that dataset.json names")
        ->type_name("FILE|bytes");
    inspect->add_flag("--json", inspect_.json, "One JSON object");
    inspect->callback([this] { chosen_ = [this] { return data_inspect_command(inspect_); }; });
    CLI::App* verify =
        data->add_subcommand("verify", "Read files whole and check sizes, ids, documents and checksums");
    verify->add_option("PATH", verify_.paths, "Files, directories or glob patterns")->required();
    add_data_kind(*verify, verify_.format, verify_.dtype, verify_.vocab);
    verify->callback([this] { chosen_ = [this] { return data_verify_command(verify_); }; });

    add_data_prepare(*data, prepare_)->callback([this] {
      chosen_ = [this] { return data_prepare_command(prepare_); };
    });

    add_checkpoint_commands(app_, checkpoint_, [this](CheckpointCommand command) {
      chosen_ = [this, command] { return command(checkpoint_); };
    });

    add_weights();
    add_manual();

    CLI::App* worker = app_.add_subcommand("worker", "Started by the agent alone");
    worker->group("");  // hidden
    worker->add_option("--control", worker_.control)->required();
    worker->add_option("--segments", worker_.segments)->required();
    worker->add_option("--world", worker_.world)->required();
    worker->add_option("--flights", worker_.flights)->required();
    worker->add_option("--held", worker_.held)->required();
    worker->add_option("--parent", worker_.parent)->required();
    worker->add_option("--rank", worker_.rank)->required();
    worker->callback([this] { chosen_ = [this] { return worker_command(worker_); }; });
  }

  /// Returns the exit status. Prints help and version itself.
  int run(int argc, char** argv) {
    // From a completion script. CLI11 must not parse it, because the words are of an unfinished command.
    if (argc > 1 && argv[1] == std::string("__complete"))
      return complete_command(command_tree(app_), {argv + 2, argv + argc});
    run_.command = submit_.command = shell_words(argc, argv);
    run_.words.assign(argv, argv + argc);
    try {
      require_known_words(app_, argc, argv);
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
      std::ostringstream help;
      const int status = app_.exit(e, help, std::cerr);
      if (!help.str().empty()) print(help.str());
      return status == 0 ? kExitDone : kExitUsage;
    }
    return chosen_();
  }

 private:
  static void add_job(CLI::App& command, std::string& job, std::vector<std::string>& overrides) {
    command.add_option("JOB", job, "YAML file of the job")->required();
    // One value per --set; else it would take the job's name too.
    command.add_option("--set", overrides, "key.path=value: goes over the file; may be repeated")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
  }

  static void add_calibrate(CLI::App& command, std::string& seconds) {
    command
        .add_flag(
            "--calibrate{10}", seconds,
            "Measure this machine first, for about 10 s (--calibrate=40: 40 s), and predict times by that")
        ->check(between(0.01, 3600.0))
        ->type_name("");
  }

  void add_views() {
    CLI::App* top = app_.add_subcommand("top", "Follow a run on the terminal; q ends it");
    top->add_option("TARGET", top_.target, "A run's output directory, or the address of its metrics")
        ->capture_default_str()
        ->type_name("DIR|URL");
    top->add_flag("--once", top_.once, "Print it once, without a terminal too");
    top->callback([this] { chosen_ = [this] { return top_command(top_); }; });

    CLI::App* report = app_.add_subcommand(
        "report", "Write an HTML page that compares runs, also those that go on; of one run its report");
    report->add_option("DIR", report_.directories, "Output directories of runs")->required();
    report->add_option("--out", report_.out, "The file; without it, standard output")->type_name("FILE");
    report->callback([this] { chosen_ = [this] { return report_command(report_); }; });
  }

  void add_weights() {
    add_import(app_, import_)->callback([this] { chosen_ = [this] { return import_command(import_); }; });
    add_export(app_, export_)->callback([this] { chosen_ = [this] { return export_command(export_); }; });
    add_generate(app_, generate_)->callback([this] {
      chosen_ = [this] { return generate_command(generate_); };
    });
  }

  // Called after all listed subcommands, because each of them has a page.
  void add_manual() {
    CLI::App* completion =
        app_.add_subcommand("completion", "Print the script by which a shell completes trainerd");
    completion->add_option("SHELL", shell_, "The shell")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    completion->callback([this] { chosen_ = [this] { return completion_command(shell_); }; });

    CLI::App* man = app_.add_subcommand("man", "Print a man page: `trainerd man run | man -l -`");
    std::vector<std::string> pages;
    for (const CommandHelp& command : command_tree(app_).subcommands) pages.push_back(command.name);
    pages.emplace_back("job");
    CLI::Option* page =
        man->add_option("PAGE", man_.page, "A subcommand, or job: the keys of a job; default: of trainerd")
            ->check(CLI::IsMember(pages));
    man->add_option("--out", man_.out, "Write every page below this directory, in man1 and man5")
        ->type_name("DIR")
        ->excludes(page);
    man->callback([this] { chosen_ = [this] { return man_command(command_tree(app_), man_); }; });
  }

  void add_simulate() {
    CLI::App* simulate = app_.add_subcommand(
        "simulate",
        "Replay a job's pipeline, or with --failures weeks of its interruptions, without running it");
    add_job(*simulate, simulate_.job, simulate_.overrides);
    simulate->add_flag("--json", simulate_.json, "One JSON object");
    add_calibrate(*simulate, simulate_.calibrate);
    simulate->add_option("--svg", simulate_.svg, "Draw the pipeline into this SVG file")->type_name("FILE");
    simulate->add_option("--trace", simulate_.trace, "Write the step for Perfetto or chrome://tracing")
        ->type_name("FILE");
    simulate
        ->add_option("--costs", simulate_.costs,
                     "Milliseconds of a chunk's forward pass, input gradient and weight gradient, and of a "
                     "transfer; in place of the plan's")
        ->expected(4)
        ->delimiter(',')
        ->type_name("F,I,W,T");
    simulate
        ->add_option("--jitter", simulate_.jitter,
                     "Coefficient of variation of the time of every rank's work")
        ->type_name("CV");
    simulate
        ->add_option("--straggler", simulate_.stragglers,
                     "A rank whose work takes a multiple of its time; may be repeated")
        ->type_name("RANK=FACTOR")
        ->allow_extra_args(false);
    simulate->add_option("--steps", simulate_.steps, "Steps that are sampled with --jitter")
        ->capture_default_str();
    simulate->add_option("--seed", simulate_.seed, "RNG seed of the simulation")->check(whole_number());
    CLI::Option* failures = simulate->add_flag("--failures", simulate_.failures,
                                               "Goodput under failures, checkpoints and restarts");
    const auto with_failures = [&](const char* name, auto& value, const char* help) {
      return simulate->add_option(name, value, help)->needs(failures);
    };
    with_failures("--step-seconds", simulate_.step_seconds, "Seconds of one step")->check(positive());
    with_failures("--checkpoint-bytes", simulate_.checkpoint_bytes, "Bytes of a checkpoint, of all ranks")
        ->check(not_negative());
    with_failures("--save-seconds", simulate_.save_seconds, "Seconds of checkpoint stall for a save")
        ->check(not_negative());
    with_failures("--weeks", simulate_.weeks, "Wall time of a simulated run");
    with_failures("--runs", simulate_.runs, "Simulated runs");
    simulate->callback([this] { chosen_ = [this] { return simulate_command(simulate_); }; });
  }

  void add_submit() {
    CLI::App* submit = app_.add_subcommand(
        "submit",
        "Plan a job, write its batch script and submit it to Slurm; where it is preempted, reaches its time "
        "limit or loses a node it goes on by itself");
    add_job(*submit, submit_.job, submit_.overrides);
    submit->add_flag("--dry", submit_.dry, "Print the script and do nothing else");
    submit->add_flag("--test-only", submit_.test_only, "Ask Slurm when it could start, and submit nothing")
        ->excludes("--dry");
    submit->add_option("--nodes", submit_.nodes, "Nodes of the job: sets cluster.nodes")
        ->check(positive())
        ->type_name("N");
    submit->add_flag("--share", submit_.share,
                     "Take the CPUs (ranks per node x threads) or GPUs of the job's ranks; default: whole "
                     "nodes, for this job alone");
    const auto add_word = [&](const char* name, std::string& value, const char* type, const char* help) {
      submit->add_option(name, value, help)->type_name(type);
    };
    add_word("--partition,-p", submit_.partition, "NAME", "Slurm's partition");
    add_word("--account,-A", submit_.account, "NAME", "Slurm's account");
    add_word("--qos,-q", submit_.qos, "NAME", "Slurm's quality of service");
    add_word(
        "--time,-t", submit_.time, "TIME",
        "Time limit, as sbatch takes it (12:00:00, 2-00:00:00); the job saves before it and goes on in a "
        "restart");
    add_word("--save-before", submit_.save_before, "DURATION",
             "How long before the time limit it saves and stops; default 2m");
    submit
        ->add_option(
            "--requeues", submit_.requeues,
            "Restarts of the job, at most, after preemption, time limit and loss of a node; 0: none; "
            "default 20")
        ->check(not_negative())
        ->type_name("N");
    add_word("--rates", submit_.rates, "NAME|FILE", "As --rates of trainerd run");
    add_word("--interface", submit_.interface, "NAME", "As --interface of trainerd run");
    add_word("--metrics-listen", submit_.metrics_listen, "HOST:PORT",
             "As --metrics-listen of trainerd run, on every node");
    submit
        ->add_option("--rendezvous-timeout", submit_.rendezvous_timeout,
                     "As --rendezvous-timeout of trainerd run")
        ->check(between(0.1, 1e7))
        ->type_name("SECONDS");
    submit
        ->add_option(
            "SBATCH", submit_.sbatch,
            "After `--`: more options of sbatch, each one word (--constraint=h100); they go over the "
            "script's; --gpus-per-node=0: none is asked for")
        ->type_name("OPTION");
    submit->footer(
        "A job that does not fit is not submitted (status 3). The output directory gets the script with the "
        "resolved job,\nand what it prints, in slurm/.\n\n"
        "  trainerd submit job.yaml --partition gpu --time 12:00:00\n"
        "  trainerd submit job.yaml --nodes 4 -- --constraint=h100 --mail-type=FAIL\n"
        "  trainerd submit job.yaml --dry | less");
    submit->callback([this] { chosen_ = [this] { return submit_command(submit_); }; });
  }

  CLI::App app_{"trainerd trains transformers: one YAML job, one command.", "trainerd"};
  RunArgs run_;
  ValidateArgs validate_;
  SimulateArgs simulate_;
  SubmitArgs submit_;

  PlanArgs plan_;
  CalibrateArgs calibrate_;
  SweepArgs sweep_;
  DataInspectArgs inspect_;
  DataPrepareArgs prepare_;
  DataVerifyArgs verify_;
  CheckpointArgs checkpoint_;
  ImportArgs import_;
  ExportArgs export_;
  GenerateArgs generate_;
  TopArgs top_;
  ReportArgs report_;
  WorkerArgs worker_;
  ManArgs man_;
  std::string shell_;
  std::function<int()> chosen_;
};

}  // namespace
}  // namespace trainerd::apps

// The only place that turns errors into exit statuses.
int main(int argc, char** argv) {
  using namespace trainerd;
  try {
    apps::open_standard_streams();
    return apps::CommandLine().run(argc, argv);
  } catch (const base::Error& e) {
    apps::print_error(std::string("trainerd: ") + e.what());
    return apps::exit_code(e.kind());
  } catch (const std::bad_alloc&) {
    apps::print_error(
        "trainerd: this host has too little memory for the command: free some, or make the job smaller");
    return apps::exit_code(base::ErrorKind::capacity);
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) {
      apps::print_error(std::string("trainerd: internal error: ") + e.what());
      return apps::kExitBug;
    }
    apps::print_error(
        "trainerd: a thread could not be started: raise the limit on processes (ulimit -u, or the cgroup's "
        "pids.max) or on address space (ulimit -v)");
    return apps::exit_code(base::ErrorKind::capacity);
  } catch (const std::exception& e) {
    apps::print_error(std::string("trainerd: internal error: ") + e.what());
    return apps::kExitBug;
  }
}
