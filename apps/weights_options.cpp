#include "apps/weights_options.h"

namespace trainerd::apps {

CLI::App* add_import(CLI::App& app, ImportArgs& args) {
  CLI::App* command =
      app.add_subcommand("import", "Make a checkpoint of a Hugging Face directory, for model.from");
  command->add_option("DIR", args.from, "With config.json and safetensors")->required();
  command->add_option("--out", args.out, "The checkpoint's directory")->required()->type_name("CKPT");
  return command;
}

CLI::App* add_export(CLI::App& app, ExportArgs& args) {
  CLI::App* command = app.add_subcommand("export", "Make a Hugging Face directory of a checkpoint's weights");
  command->add_option("CKPT", args.from, "A checkpoint, or a run's output: its newest")->required();
  command->add_option("--out", args.out, "The directory")->required()->type_name("DIR");
  command->add_option("--dtype", args.dtype, "Data type of the weights; default: as the checkpoint has them")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command
      ->add_option("--max-shard-size", args.max_shard_size,
                   "Size of a file, at most; default 5GB; adapters are one file")
      ->type_name("SIZE");
  command->add_flag("--no-tokenizer", args.no_tokenizer, "Leave the tokenizer's files out");
  command->add_flag("--ema", args.ema,
                    "The averaged weights of a run with ema.decay, in place of the last ones");
  CLI::Option* adapter = command->add_flag("--adapter", args.adapter,
                                           "A directory that PEFT loads, of a LoRA run; the default there");
  CLI::Option* merge = command->add_flag(
      "--merge", args.merge, "The whole model of a LoRA run: its adapters merged into their base");
  adapter->excludes(merge);
  command->add_option("--base", args.base, "Where the base of --merge lies now; default: where it was")
      ->type_name("DIR|CKPT")
      ->needs(merge);
  return command;
}

}  // namespace trainerd::apps
