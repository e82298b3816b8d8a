#include "cli/options/container_options.h"

#include <CLI/CLI.hpp>

#include "api/control.h"
#include "cli/text/help.h"

namespace prorata::cli {
namespace {

constexpr const char* kCreateFooter =
    "Examples:\n"
    "  prorata create train -m 8G --compute 0.3\n"
    "  podman run --device prorata.dev/share=train IMAGE python train.py\n"
    "  prorata run --name train -- python check.py       a program beside the container's\n"
    "  prorata create next -m 8G --wait=10m              in line, until there is room\n"
    "  prorata create whole --mode exclusive --gpu 1     all of GPU 1, with the plain driver\n"
    "  prorata rm train\n\n"
    "SIZE, FRACTION, DURATION and GPU=VALUE are as in `prorata run --help`.\n\n"
    "The share is there until `prorata rm`, with programs and without. Container engines know it "
    "as\n"
    "the device prorata.dev/share=NAME, which is printed; the first container that uses it has it\n"
    "until that container ends.\n\n"
    "With --wait, shares are made in the order in which they were asked for; a smaller one "
    "overtakes\n"
    "only where nobody waits longer for it. The place in line is printed on standard error; "
    "Ctrl-C\n"
    "leaves the line. What can never fit is refused at once.";

constexpr const char* kRemoveFooter =
    "Examples:\n"
    "  prorata rm train\n"
    "  prorata rm -f train serve       also kills the programs that run on them\n\n"
    "As `docker rm`: a share that programs run on, or that a container has, is refused. With -f "
    "its\n"
    "programs are killed (SIGKILL) and the share ends with the last of them; a container goes on\n"
    "without a GPU, or ends if such a program was its first. Only root may kill programs of "
    "other\n"
    "users. A share of `run` ends by itself, with its program.";

constexpr const char* kInspectFooter =
    "Examples:\n"
    "  prorata inspect train\n"
    "  prorata inspect train --json | jq .cdi.devices[0].containerEdits.mounts\n\n"
    "Lines of the share:\n"
    "  device                   by which container engines know it, where `create` made it\n"
    "  mode                     shared, or exclusive: whole GPUs with the plain driver\n"
    "  kept by                  what keeps it while no program runs on it\n"
    "  folder                   what its programs find it by\n"
    "  allowed users, exports memory to, containers, on full, gang    as said by the options of\n"
    "                           `prorata create --help`\n"
    "Lines of each of its GPUs:\n"
    "  memory request, limit    what is guaranteed, and the most that it may hold\n"
    "  memory used              what it holds, and the part that no allocation asked for (CUDA\n"
    "                           contexts, code)\n"
    "  refusals                 allocations that failed at the limit or on a full GPU\n"
    "  compute request, limit   of the GPU's time: what is guaranteed, and the most it may take\n"
    "  weight, priority, yield within    as in `prorata run --help`\n"
    "  GPU time, entitled       of the GPU's time in about the last second: what it had, and what\n"
    "                           it is due now (-: it wants none)";

constexpr const char* kCdiFooter =
    "Examples:\n"
    "  prorata cdi train                                  the specification that engines read\n"
    "  ctr run $(prorata cdi --ctr train) IMAGE NAME      containerd before 1.7\n"
    "  podman run $(prorata cdi --volumes train) IMAGE    podman 4 without root";

void AddName(CLI::App* app, Options* options, bool several) {
  auto* names = app->add_option("names", options->named.names, several ? "The shares" : "The share")
                    ->required()
                    ->option_text(several ? "NAME..." : "NAME");
  if (!several) names->expected(1);
}

}  // namespace

std::optional<Verb> ContainerCommands::Parsed() const {
  if (create->parsed()) return Verb::kCreate;
  if (remove->parsed()) return Verb::kRemove;
  if (inspect->parsed()) return Verb::kInspect;
  if (cdi->parsed()) return Verb::kCdi;
  if (hook->parsed()) return Verb::kContainerHook;
  return std::nullopt;
}

ContainerCommands AddContainerCommands(CLI::App* app, RawShare* raw_create, Options* options) {
  ContainerCommands commands;
  commands.create =
      app->add_subcommand("create", "Make a share for containers, or for programs that come later");
  commands.create->add_option("name", options->create.name, "Name of the share")
      ->required()
      ->option_text("NAME");
  AddShareOptions(commands.create, raw_create, &options->create);
  commands.create->add_flag("--any-container", options->create.any_container,
                            "Let several containers use the share at once (default: one after "
                            "another)");
  commands.create
      ->add_option_function<std::string>(
          "--mode",
          [options](const std::string& mode) { options->create.exclusive = mode == "exclusive"; },
          "shared, or exclusive: whole GPUs with the plain driver and nothing of prorata in the "
          "container, and no other share on them (default: shared)")
      ->option_text("shared|exclusive")
      ->check(OneOf({"shared", "exclusive"}));
  commands.create->footer(kCreateFooter);
  commands.inspect = app->add_subcommand("inspect", "Show everything about one share");
  AddName(commands.inspect, options, false);
  commands.inspect->add_flag("--json", options->json, "Print JSON");
  commands.inspect->footer(kInspectFooter);
  commands.remove = app->add_subcommand("rm", "End shares");
  AddName(commands.remove, options, true);
  commands.remove->add_flag(
      "-f,--force", options->named.force,
      "Kill the programs that run on them (default: such a share is refused)");
  commands.remove->footer(kRemoveFooter);
  commands.cdi = app->add_subcommand("cdi", "Print how a container gets a share");
  AddName(commands.cdi, options, false);
  commands.cdi->add_flag("--ctr", options->named.ctr,
                         "As arguments of `ctr run`, for a containerd that knows no devices of "
                         "this kind");
  commands.cdi->add_flag("--volumes", options->named.volumes,
                         "As arguments of `podman run` or `docker run`, for one that finds no "
                         "devices of this kind");
  commands.cdi->footer(kCdiFooter);
  // Of no use to a person, so not in the help.
  commands.hook = app->add_subcommand("container-hook")->group("");
  commands.hook->add_option("libraries", options->named.names)->required();
  return commands;
}

Status FillContainerCommand(const ContainerCommands& commands, const RawShare& raw_create,
                            Options* options) {
  if (commands.create->parsed()) {
    if (auto ok = FillShare(*commands.create, raw_create, &options->create); !ok) return ok;
    if (auto ok = api::ValidateShareName(options->create.name); !ok) {
      return Fail("usage", "create: " + ok.error().message);
    }
  }
  if (commands.hook->parsed()) return {};
  if (options->named.ctr && options->named.volumes) {
    return Fail("usage", "cdi: --ctr and --volumes are for different engines; give one");
  }
  for (const std::string& name : options->named.names) {
    if (auto ok = api::ValidateShareName(name); !ok) return Fail("usage", ok.error().message);
  }
  return {};
}

}  // namespace prorata::cli
