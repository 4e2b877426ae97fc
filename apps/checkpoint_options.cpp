#include "apps/checkpoint_options.h"

#include "apps/number_check.h"

namespace trainerd::apps {

void add_checkpoint_commands(CLI::App& app, CheckpointArgs& args,
                             const std::function<void(CheckpointCommand)>& choose) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Look at checkpoints, compare and convert them");
  checkpoint->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, CheckpointCommand command) {
    CLI::App* sub = checkpoint->add_subcommand(name, help);
    sub->callback([choose, command] { choose(command); });
    return sub;
  };
  const auto add_path = [&](CLI::App* sub) {
    sub->add_option("PATH", args.path, "A run's output directory, or a checkpoint's")->required();
    sub->add_flag("--json", args.json, "One JSON object");
    return sub;
  };
  add_path(add("list", "The checkpoints of a run, newest first", checkpoint_list_command));
  add_path(
      add("verify", "Check every size and checksum, of a run's every checkpoint", checkpoint_verify_command));
  add_path(add("show", "Verify, and print what it holds, of a run the newest", checkpoint_show_command))
      ->add_flag("--statistics", args.statistics,
                 "Minimum, maximum, mean and root mean square of each tensor");

  CLI::App* diff =
      add("diff", "Compare the tensors of two checkpoints of any layouts: status 0 equal, 1 different",
          checkpoint_diff_command);
  diff->add_option("A", args.path, "A checkpoint, or a run's output: its newest")->required();
  diff->add_option("B", args.second, "Another")->required();
  diff->add_option("--tolerance", args.tolerance,
                   "Tolerance of a tensor's relative error, max |a - b| / max |a|; default 0: bit for bit")
      ->check(not_negative());
  diff->add_flag("--json", args.json, "One JSON object, of every tensor that differs");

  const auto add_out = [&](CLI::App* sub) {
    sub->add_option("--out", args.out, "The new checkpoint's directory")->required()->type_name("CKPT");
  };
  CLI::App* reshard =
      add("reshard", "Write what the ranks of another layout would have saved", checkpoint_reshard_command);
  reshard->add_option("CKPT", args.path, "A checkpoint, or a run's output: its newest")->required();
  add_out(reshard);
  reshard->add_option("--set", args.overrides, "The layout: parallel.tp=2, ...; also cluster and batch.micro")
      ->type_name("KEY=VALUE");

  CLI::App* merge =
      add("merge", "Write the mean of several checkpoints of one model", checkpoint_merge_command);
  merge->add_option("CKPT", args.paths, "Checkpoints, or runs' outputs: their newest")
      ->required()
      ->expected(2, -1);
  add_out(merge);
}

}  // namespace trainerd::apps
