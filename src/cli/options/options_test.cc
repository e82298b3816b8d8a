#include "cli/options/options.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "cli/text/tables.h"

namespace prorata::cli {
namespace {

using Words = std::vector<std::string>;

RunOptions RunOf(const Words& words) {
  const ParseOutcome outcome = ParseCommandLine(words);
  EXPECT_TRUE(outcome.options.has_value()) << outcome.err;
  return outcome.options ? outcome.options->run : RunOptions{};
}

TEST(OptionsTest, RunWithoutFlagsIsAllMemoryRequestZeroLimitOne) {
  const RunOptions run = RunOf({"run", "--", "python", "train.py"});
  EXPECT_FALSE(run.memory || run.memory_request);
  EXPECT_EQ(run.compute_request, Fraction::Zero());
  EXPECT_EQ(run.compute_limit, Fraction::One());
  EXPECT_EQ(run.weight, 100u);
  EXPECT_EQ(run.command, (Words{"python", "train.py"}));
}

TEST(OptionsTest, RunReadsItsFlags) {
  const RunOptions run =
      RunOf({"run", "--memory", "4GiB", "--compute=30%", "--compute-limit", "0.5", "--weight", "7",
             "--gpu", "GPU-1", "--name", "night-1", "--", "x"});
  EXPECT_EQ(run.memory->bytes, 4 * kGiB);
  EXPECT_EQ(run.compute_request.ppm, 300'000u);
  EXPECT_EQ(run.compute_limit.ppm, 500'000u);
  EXPECT_EQ(run.weight, 7u);
  EXPECT_EQ(run.gpus, Words{"GPU-1"});
  EXPECT_EQ(run.name, "night-1");
  EXPECT_FALSE(run.on_full.waits() || run.guaranteed);
  const RunOptions waiting =
      RunOf({"run", "--on-full", "wait=30s", "--guaranteed", "--", "python", "train.py"});
  EXPECT_EQ(waiting.on_full, api::OnFull{30'000});
  EXPECT_TRUE(waiting.guaranteed);
  EXPECT_EQ(RunOf({"run", "--share-memory-with", "a", "--share-memory-with=b", "c", "d"})
                .share_memory_with,
            (Words{"a", "b"}));
  EXPECT_EQ(RunOf({"run", "--on-full=wait", "--", "a"}).on_full, api::OnFull{wire::kWaitForever});
}

TEST(OptionsTest, SeveralGpusWithTermsOfTheirOwn) {
  const RunOptions run =
      RunOf({"run", "--gpu", "0,GPU-2", "--memory", "4GiB,GPU-2=6GiB", "--compute", "0=0.25",
             "--compute-limit", "GPU-2=50%,0=0.5", "--weight", "7", "--", "x"});
  EXPECT_EQ(run.gpus, (Words{"0", "GPU-2"}));
  EXPECT_FALSE(run.gpu_count);
  EXPECT_EQ(run.memory->bytes, 4 * kGiB);
  EXPECT_EQ(run.compute_request, Fraction::Zero());
  EXPECT_EQ(run.weight, 7u);
  ASSERT_EQ(run.on.size(), 2u);
  EXPECT_EQ(run.on[0].gpu, "GPU-2");
  EXPECT_EQ(run.on[0].memory->bytes, 6 * kGiB);
  EXPECT_EQ(run.on[0].compute_limit, Fraction{500'000});
  EXPECT_FALSE(run.on[0].compute_request || run.on[0].weight);
  EXPECT_EQ(run.on[1].gpu, "0");
  EXPECT_FALSE(run.on[1].memory);
  EXPECT_EQ(run.on[1].compute_request, Fraction{250'000});
  const RunOptions chosen = RunOf({"run", "--gpus", "16", "--memory", "1GiB", "--", "x"});
  EXPECT_EQ(chosen.gpu_count, 16u);
  EXPECT_TRUE(chosen.gpus.empty());
}

TEST(OptionsTest, TheCommandKeepsItsOwnWords) {
  EXPECT_EQ(RunOf({"run", "--", "ls", "--help", "--", "-x"}).command,
            (Words{"ls", "--help", "--", "-x"}));
  EXPECT_EQ(RunOf({"run", "ls", "--memory", "1", "--", "-x"}).command,
            (Words{"ls", "--memory", "1", "--", "-x"}));
  EXPECT_EQ(RunOf({"run", "--name", "a", "ps", "--json"}).command, (Words{"ps", "--json"}));
  EXPECT_EQ(RunOf({"run", "--", "--odd-name"}).command, (Words{"--odd-name"}));
}

TEST(OptionsTest, EventsFromNowOnUnlessOlderOnesAreWanted) {
  auto events = [](const Words& words) { return ParseCommandLine(words).options->events; };
  EXPECT_FALSE(events({"events"}).since);
  EXPECT_TRUE(events({"events"}).follow);
  EXPECT_EQ(events({"events", "--all"}).since, 0u);
  EXPECT_EQ(events({"events", "--since", "7"}).since, 7u);
  EXPECT_EQ(events({"events", "--no-follow"}).since, 0u);
  EXPECT_FALSE(events({"events", "--no-follow"}).follow);
  EXPECT_EQ(events({"events", "--no-follow", "--since", "7"}).since, 7u);
  EXPECT_EQ(events({"events", "--share", "a/b"}).share, "a/b");
}

TEST(OptionsTest, MemoryAsAPartOfTheGpuAndItsRequest) {
  const auto run = RunOf(
      {"run", "--gpu", "0,1", "--memory", "25%,1=50%", "--memory-request", "0,1=12.5%", "--", "x"});
  EXPECT_EQ(run.memory, api::MemorySize(Fraction{250'000}));
  EXPECT_EQ(run.memory_request, api::MemorySize());
  ASSERT_EQ(run.on.size(), 1u);
  EXPECT_EQ(run.on[0].memory, api::MemorySize(Fraction{500'000}));
  EXPECT_EQ(run.on[0].memory_request, api::MemorySize(Fraction{125'000}));
  // A size and a part: only the agent knows.
  EXPECT_EQ(RunOf({"run", "--memory-request", "5GiB", "--memory", "1%", "--", "x"}).memory,
            api::MemorySize(Fraction{10'000}));
}

TEST(OptionsTest, BadMemoryIsOneLineAndStatusTwo) {
  const std::vector<Words> bad = {
      {"run", "--memory", "0%", "--", "x"},
      {"run", "--memory", "100.1%", "--", "x"},
      {"run", "--memory-request", "101%", "--", "x"},
      {"run", "--memory-request", "-1", "--", "x"},
      {"run", "--memory-request", "0%", "--", "x"},
      {"run", "--memory-request", "5GiB", "--memory", "4GiB", "--", "x"},
      {"run", "--memory-request", "26%", "--memory", "25%", "--", "x"},
      {"run", "--memory-request", "5GiB", "--guaranteed", "--", "x"},
      {"run", "--gpu", "0", "--memory-request", "5GiB", "--memory", "8GiB,0=4GiB", "--", "x"},
      {"update", "x", "--memory-request", "5GiB", "--memory", "4GiB"},
  };
  for (const Words& words : bad) {
    std::string line;
    for (const std::string& word : words) line += word + " ";
    const ParseOutcome outcome = ParseCommandLine(words);
    EXPECT_FALSE(outcome.options) << line;
    EXPECT_EQ(outcome.status, kExitUsage) << line;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_TRUE(outcome.err.starts_with("prorata: ")) << line << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << line << outcome.err;
  }
}

TEST(OptionsTest, BadInputIsOneLineAndStatusTwo) {
  const std::vector<Words> bad = {
      {},
      {"walk"},
      {"events", "--since", "x"},
      {"events", "--since", "-1"},
      {"events", "--all", "--since", "4"},
      {"events", "--share", "../x"},
      {"events", "now"},
      {"run"},
      {"run", "--"},
      {"run", "--", ""},
      {"run", "--memory", "--", "x"},
      {"run", "--memory", "-1", "--", "x"},
      {"run", "--memory=-1", "--", "x"},
      {"run", "--memory", "4Gib", "--", "x"},
      {"run", "--memory", "0", "--", "x"},
      {"run", "--memory", "", "--", "x"},
      {"run", "--compute", "1.1", "--", "x"},
      {"run", "--compute", "-0.1", "--", "x"},
      {"run", "--compute", "nan", "--", "x"},
      {"run", "--compute-limit", "1.5", "--", "x"},
      {"run", "--compute-limit", "0", "--", "x"},
      {"run", "--compute", "0.5", "--compute-limit", "0.3", "--", "x"},
      {"run", "--weight", "0", "--", "x"},
      {"run", "--weight", "-1", "--", "x"},
      {"run", "--weight", "99999999999999999999", "--", "x"},
      {"run", "--gpu", "", "--", "x"},
      {"run", "--gpu", "0,", "--", "x"},
      {"run", "--gpu", ",0", "--", "x"},
      {"run", "--gpus", "0", "--", "x"},
      {"run", "--gpus", "17", "--", "x"},
      {"run", "--gpus", "0,2", "--", "x"},
      {"run", "--gpus", "", "--", "x"},
      {"run", "--gpus", "2", "--gpu", "0,1", "--", "x"},
      {"run", "--gpus", "2", "--memory", "0=1GiB", "--", "x"},
      {"run", "--memory", "0=1GiB", "--", "x"},
      {"run", "--gpu", "0", "--memory", "=1GiB", "--", "x"},
      {"run", "--gpu", "0", "--memory", "0=", "--", "x"},
      {"run", "--gpu", "0", "--memory", "0=0", "--", "x"},
      {"run", "--gpu", "0", "--memory", "1GiB,", "--", "x"},
      {"run", "--gpu", "0", "--memory", "1GiB,2GiB", "--", "x"},
      {"run", "--gpu", "0", "--memory", "0=1GiB,0=2GiB", "--", "x"},
      {"run", "--gpu", "0", "--compute", "0=2", "--", "x"},
      {"run", "--gpu", "0", "--compute-limit", "0=0", "--", "x"},
      {"run", "--gpu", "0", "--compute", "0.5", "--compute-limit", "0=0.4", "--", "x"},
      {"run", "--gpu", "0", "--weight", "0=0", "--", "x"},
      {
          "update",
          "a",
          "--memory",
          "2=",
      },
      {"update", "a", "--gpu", "2"},
      {"run", "--name", "", "--", "x"},
      {"run", "--name", "../x", "--", "x"},
      {"run", "--name", ".", "--", "x"},
      {"run", "--name", "two words", "--", "x"},
      {"run", "--name", std::string(64, 'n'), "--", "x"},
      {"run", "--memroy", "4GiB", "--", "x"},
      {"run", "--memroy", "4GiB", "x"},
      {"ps", "--yaml"},
      {"ps", "two words"},
      {"ps", "-1"},
      {"ps", "--", "x"},
      {"agent", "--log-level", "loud"},
      {"agent", "--overcommit", "0.5"},
      {"agent", "--overcommit", "much"},
      {"agent", "--overcommit", "0="},
      {"agent", "--overcommit"},
      {"agent", "--metrics", "everywhere:80"},
      {"agent", "--metrics"},
      {"run", "--on-full", "wait=0s", "--", "x"},
      {"run", "--on-full", "retry", "--", "x"},
      {"update", "a", "--on-full", "wait=5"},
  };
  for (const Words& words : bad) {
    std::string line;
    for (const std::string& word : words) line += word + " ";
    const ParseOutcome outcome = ParseCommandLine(words);
    EXPECT_FALSE(outcome.options) << line;
    EXPECT_EQ(outcome.status, kExitUsage) << line;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_TRUE(outcome.err.starts_with("prorata: ")) << line << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << line << outcome.err;
  }
}

const char* const kCommands[] = {"run",     "create",   "ps",     "top", "gpus",
                                 "inspect", "events",   "update", "rm",  "cdi",
                                 "debug",   "simulate", "agent"};

TEST(OptionsTest, HelpWithExamplesOnEveryCommand) {
  std::vector<Words> all = {{}, {"debug", "trace"}};
  for (const char* command : kCommands) all.push_back({command});
  for (Words words : all) {
    Words help = words;
    help.insert(help.begin(), "help");
    words.emplace_back("--help");
    const ParseOutcome outcome = ParseCommandLine(words);
    EXPECT_EQ(outcome.status, kExitOk);
    EXPECT_EQ(outcome.err, "");
    EXPECT_NE(outcome.out.find("Example"), std::string::npos) << outcome.out;
    // Nothing of the parser's own words, and no line that a terminal breaks.
    for (const char* raw : {"{", "TEXT", "UINT", "REQUIRED", "Excludes", "Needs", "Positionals",
                            "Subcommand", "SUBCOMMAND", "set aside", "told"}) {
      EXPECT_EQ(outcome.out.find(raw), std::string::npos) << raw << " is in\n" << outcome.out;
    }
    for (size_t from = 0; from < outcome.out.size();) {
      const size_t end = outcome.out.find('\n', from);
      EXPECT_LE(end - from, 100u) << outcome.out.substr(from, end - from);
      from = end + 1;
    }
    EXPECT_EQ(outcome.out.find("\n\n\n"), std::string::npos) << outcome.out;
    EXPECT_EQ(ParseCommandLine(help).out, outcome.out) << "prorata help";
    EXPECT_EQ(ParseCommandLine(help).status, kExitOk);
  }
  for (const Words& words : {Words{"--version"}, Words{"-v"}, Words{"version"}}) {
    EXPECT_TRUE(ParseCommandLine(words).out.starts_with("prorata "));
  }
  for (const Words& words : {Words{"help", "walk"}, Words{"walk", "--help"}, Words{"walk", "x"}}) {
    const ParseOutcome unknown = ParseCommandLine(words);
    EXPECT_EQ(unknown.status, kExitUsage);
    EXPECT_NE(unknown.err.find("'walk' is not a command; they are run, create"), std::string::npos)
        << unknown.err;
  }
}

TEST(OptionsTest, HelpOfRunRunsNothing) {
  const ParseOutcome outcome = ParseCommandLine({"help", "run", "touch", "x"});
  EXPECT_FALSE(outcome.options);
  EXPECT_EQ(outcome.out, ParseCommandLine({"run", "--help"}).out);
}

TEST(OptionsTest, ValuesThatMayBeginWithSomethingElseAreApartFromTheirOption) {
  const std::string agent = ParseCommandLine({"agent", "--help"}).out;
  for (const char* entry : {"--overcommit [GPU=]RATIO[,...]", "--metrics [ADDRESS:]PORT"}) {
    EXPECT_NE(agent.find(entry), std::string::npos) << agent;
  }
  const std::string run = ParseCommandLine({"run", "--help"}).out;
  EXPECT_NE(run.find("--wait[=DURATION]"), std::string::npos) << run;
}

// Somebody who has not seen the tool finds five answers in the help, in this order, each with the
// command and an example of it.
TEST(OptionsTest, TheHelpSaysHowToRunLimitWatchChangeAndEnd) {
  const std::string help = ParseCommandLine({"--help"}).out;
  size_t at = 0;
  for (const char* answer : {"\nRun a program on a share:\n",
                             "\n  run ",
                             "\n  create ",
                             "\nLimit what it gets",
                             "\n  -m, --memory SIZE ",
                             "\n  --compute FRACTION ",
                             "\n  --compute-limit FRACTION ",
                             "\nWatch:\n",
                             "\n  ps ",
                             "\n  top ",
                             "\nChange a share while its programs run:\n",
                             "\n  update ",
                             "\nEnd a share:\n",
                             "\n  rm ",
                             "\nExamples:\n",
                             "\n  prorata run -m 4G",
                             "\n  prorata ps\n",
                             "\n  prorata update train -m 6G\n",
                             "\n  prorata rm train\n",
                             "\n  request ",
                             "\n  limit ",
                             "\n  promised ",
                             "\n  entitled ",
                             "\n  PRORATA_DIR ",
                             "\n  PRORATA_DRIVER_DIR "}) {
    const size_t found = help.find(answer, at);
    ASSERT_NE(found, std::string::npos) << answer << " is not after what comes before it in\n"
                                        << help;
    at = found;
  }
  for (const char* command : kCommands) {
    EXPECT_NE(help.find("\n  " + std::string(command) + " "), std::string::npos) << command;
  }
}

TEST(OptionsTest, HelpExplainsEachColumn) {
  api::ShareStatus share;
  share.container.emplace();
  share.devices.emplace_back();
  api::DeviceStatus device;
  device.limit_bytes = 1;  // it has BORROWED, too
  const auto titles = [](const std::string& table) {
    Words words;
    std::string line = table.substr(0, table.find('\n')) + "  ";
    for (size_t end; (end = line.find("  ")) != std::string::npos;) {
      if (end > 0) words.push_back(line.substr(0, end));
      line.erase(0, line.find_first_not_of(' ', end));
      if (line.find_first_not_of(' ') == std::string::npos) break;
    }
    return words;
  };
  const std::pair<const char*, Words> tables[] = {
      {"ps", titles(ShareTable({share}))},
      {"gpus", titles(DeviceTable({device}))},
      {"top",
       {"TIME", "GPU TIME", "ENTITLED", "LIMIT", "WAITED", "AT LIMIT", "MEMORY", "MEMBERS",
        "WHY"}}};
  for (const auto& [command, columns] : tables) {
    const std::string help = ParseCommandLine({command, "--help"}).out;
    EXPECT_GT(columns.size(), 6u);
    for (const std::string& column : columns) {
      const bool explained = help.find("\n  " + column + " ") != std::string::npos ||
                             help.find(column, help.find("Columns")) != std::string::npos;
      EXPECT_TRUE(explained) << column << " of " << command << "\n" << help;
    }
  }
}

TEST(OptionsTest, OptionsAsDockerHasThem) {
  EXPECT_EQ(RunOf({"run", "-m", "4g", "--", "x"}).memory->bytes, 4 * kGiB);
  EXPECT_EQ(RunOf({"run", "-m4G", "--", "x"}).memory->bytes, 4 * kGiB);
  EXPECT_TRUE(ParseCommandLine({"ps", "-q"}).options->ps.quiet);
  EXPECT_EQ(ParseCommandLine({"ps", "a", "b"}).options->ps.names, (Words{"a", "b"}));
  EXPECT_TRUE(ParseCommandLine({"rm", "-f", "a"}).options->named.force);
  EXPECT_TRUE(ParseCommandLine({"rm", "a", "--force"}).options->named.force);
  EXPECT_FALSE(ParseCommandLine({"rm", "a"}).options->named.force);
  EXPECT_EQ(ParseCommandLine({"events", "-a"}).options->events.since, 0u);
  // What Docker has and `run` needs not: what to do in its place.
  const std::pair<const char*, const char*> hints[] = {{"-d", "background"},
                                                       {"-it", "terminal"},
                                                       {"-e", "environment"},
                                                       {"--rm", "ends with its program"}};
  for (const auto& [option, hint] : hints) {
    const std::string err = ParseCommandLine({"run", option, "--", "x"}).err;
    EXPECT_NE(err.find(hint), std::string::npos) << err;
  }
}

TEST(OptionsTest, AllGpus) {
  const RunOptions run = RunOf({"run", "--gpus", "all", "--memory", "4GiB,1=6GiB", "--", "x"});
  EXPECT_TRUE(run.all_gpus);
  EXPECT_FALSE(run.gpu_count);
  ASSERT_EQ(run.on.size(), 1u);
  EXPECT_FALSE(RunOf({"run", "--gpus", "2", "--", "x"}).all_gpus);
  EXPECT_FALSE(ParseCommandLine({"run", "--gpus", "all", "--gpu", "0", "--", "x"}).options);
}

TEST(OptionsTest, WhatIsMissingOrWrongIsNamedInWordsOfOurOwn) {
  const std::pair<Words, Words> cases[] = {
      {{"update"}, {"update: the name of the share is missing", "prorata update train -m 4G"}},
      {{"update", "--memory", "4G"}, {"update: the name of the share is missing"}},
      {{"rm"}, {"rm: the name of the share is missing"}},
      {{"inspect"}, {"inspect: the name of the share is missing"}},
      {{"create"}, {"create: the name of the new share is missing"}},
      {{"run", "--memory", "4", "--", "x"}, {"--memory: '4' is 4 B", "64 MiB", "example 4GiB"}},
      {{"run", "-m", "4K", "--", "x"}, {"'4K' is 4 KiB", "64 MiB"}},
      {{"run", "-m", "4X", "--", "x"}, {"'X' is not one of B, K, M, G, T"}},
      {{"run", "--memory-request", "4", "--", "x"}, {"64 MiB"}},
      {{"update", "a", "-m", "4"}, {"64 MiB"}},
      {{"update", "a", "--memory"}, {"update: --memory needs a value: SIZE", "update --help"}},
      {{"update", "a", "-m", "4G", "-m", "5G"}, {"--memory is given twice"}},
      {{"ps", "--yaml"}, {"ps: unknown option '--yaml'", "`prorata ps --help`"}},
      {{"ps", "--json=x"}, {"ps: --json takes no value"}},
      {{"ps", "--quiet=3"}, {"ps: --quiet takes no value"}},
      {{"rm", "--force=false", "a"}, {"rm: --force takes no value"}},
      {{"create", "a", "--guaranteed=2"}, {"create: --guaranteed takes no value"}},
      {{"inspect", "a", "b"}, {"inspect: it takes one share", "`prorata inspect --help`"}},
      {{"cdi", "a", "b"}, {"cdi: it takes one share"}},
      {{"create", "a", "b"}, {"create: one word too many: 'b'"}},
      {{"update", "a", "b", "-m", "4G"}, {"update: one word too many: 'b'"}},
      {{"top", "--interval", "5"}, {"'5' is not a span of time: it has no unit", "30s"}},
      {{"ps", "-q", "--json"}, {"give one"}},
      {{"events", "now"}, {"events: one word too many: 'now'"}},
      {{"events", "--since", "-1"}, {"--since", "'-1' is not a whole number from 0 on"}},
      {{"agent", "--log-level", "loud"}, {"'loud' is not trace, debug, info, warn or error"}},
      {{"create", "a", "--mode", "x"}, {"'x' is not shared or exclusive"}},
      {{"cdi", "a", "--ctr", "--volumes"}, {"give one"}},
      {{"simulate", "--load", "x"}, {"'x' is not a percentage from 1 to 1000"}},
      {{"simulate", "--gpus", "0"}, {"'0' is not a whole number from 1 to 1000000"}},
      {{"debug", "walk"}, {"debug: 'walk' is not a command of debug", "`prorata debug --help`"}},
      {{"walk"}, {"'walk' is not a command", "rm"}},
      {{"run", "-m=4G", "--", "x"}, {"write --memory=4G"}},
      {{"run", "--compute", "0,3", "--", "x"}, {"for example 0.3,2=0.5"}},
      {{"run", "--wait", "1s", "-m", "1G", "--", "x"}, {"is written --wait=1s"}},
      {{"run", "--bogus=1", "--", "x"}, {"unknown option '--bogus=1'"}},
      {{"ps", "--bogus=1"}, {"unknown option '--bogus'"}},
      {{"update", "a", "--gpus=2"}, {"--gpus can be given only when a share is made"}},
      {{"update", "a", "--guaranteed"}, {"--guaranteed can be given only when"}},
      {{"run", "--name", "\x1b[31mred\nb", "--", "x"}, {"?[31mred b"}},
      {{"run", "--allow-users", "all,root", "--", "x"}, {"'all' stands alone"}},
      {{"run", "--compute-limit", "0", "--", "x"}, {"for example 0.3"}},
      {{"--yaml"}, {"--yaml"}},
  };
  for (const auto& [words, parts] : cases) {
    std::string line;
    for (const std::string& word : words) line += word + " ";
    const ParseOutcome outcome = ParseCommandLine(words);
    EXPECT_FALSE(outcome.options) << line;
    EXPECT_EQ(outcome.status, kExitUsage) << line;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << line << outcome.err;
    for (const std::string& part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " is not in " << outcome.err;
    }
    for (const char* raw :
         {"required TEXT", "{", "INVALID", "following argument", "Could not", "At Most"}) {
      EXPECT_EQ(outcome.err.find(raw), std::string::npos) << outcome.err;
    }
  }
}

TEST(OptionsTest, UpdateNamesWhatChanges) {
  const ParseOutcome outcome =
      ParseCommandLine({"update", "a/b", "--memory", "6GiB", "--weight", "7"});
  ASSERT_TRUE(outcome.options) << outcome.err;
  EXPECT_EQ(outcome.options->verb, Verb::kUpdate);
  const UpdateOptions& update = outcome.options->update;
  EXPECT_EQ(update.name, "a/b");
  EXPECT_EQ(update.change.memory->bytes, uint64_t{6} << 30);
  EXPECT_EQ(update.change.weight, 7u);
  EXPECT_FALSE(update.change.compute_request || update.change.compute_limit);
  EXPECT_FALSE(update.change.on_full);
  EXPECT_EQ(ParseCommandLine({"update", "a", "--on-full", "fail"}).options->update.change.on_full,
            api::OnFull{});
  const ParseOutcome one = ParseCommandLine({"update", "a", "--memory", "2=6GiB"});
  ASSERT_TRUE(one.options) << one.err;
  EXPECT_FALSE(one.options->update.change.memory);
  ASSERT_EQ(one.options->update.change.on.size(), 1u);
  EXPECT_EQ(one.options->update.change.on[0].gpu, "2");
  EXPECT_EQ(one.options->update.change.on[0].memory->bytes, 6 * kGiB);
  EXPECT_FALSE(one.options->update.change.allow_users);
  const auto users = [](const char* text) {
    const ParseOutcome read = ParseCommandLine({"update", "a", "--allow-users", text});
    return read.options ? read.options->update.change.allow_users : std::nullopt;
  };
  EXPECT_EQ(users("root,1001"), (api::AllowedUsers{.users = {0, 1001}}));
  EXPECT_EQ(users("all"), api::AllowedUsers{.all = true});
  EXPECT_EQ(users("none"), api::AllowedUsers{});
  EXPECT_EQ(users("nobody-of-that-name"), std::nullopt);
  EXPECT_EQ(ParseCommandLine({"update", "a"}).status, kExitUsage);
  EXPECT_EQ(ParseCommandLine({"update", "--memory", "1GiB"}).status, kExitUsage);
  EXPECT_EQ(ParseCommandLine({"update", "..", "--memory", "1GiB"}).status, kExitUsage);
}

TEST(OptionsTest, OtherCommands) {
  const ParseOutcome agent =
      ParseCommandLine({"agent", "--exit-when-idle", "--ready-fd", "5", "--dilation", "8"});
  ASSERT_TRUE(agent.options);
  EXPECT_EQ(agent.options->verb, Verb::kAgent);
  EXPECT_TRUE(agent.options->agent.exit_when_idle);
  EXPECT_EQ(agent.options->agent.ready_fd, 5);
  EXPECT_EQ(agent.options->agent.dilation, 8u);
  EXPECT_TRUE(agent.options->agent.overcommit.empty());
  const auto over = ParseCommandLine({"agent", "--overcommit", "1.5", "--overcommit", "0=2"});
  ASSERT_TRUE(over.options) << over.err;
  ASSERT_EQ(over.options->agent.overcommit.size(), 2u);
  EXPECT_EQ(over.options->agent.overcommit[0].ratio, 1.5);
  EXPECT_EQ(over.options->agent.overcommit[1].gpu, "0");
  EXPECT_EQ(over.options->agent.overcommit[1].ratio, 2);
  EXPECT_FALSE(agent.options->agent.metrics) << "nothing is offered unasked";
  const auto metrics = ParseCommandLine({"agent", "--metrics", "9400"});
  ASSERT_TRUE(metrics.options) << metrics.err;
  EXPECT_EQ(metrics.options->agent.metrics->address, "127.0.0.1");
  EXPECT_EQ(metrics.options->agent.metrics->port, 9400);
  const ParseOutcome ps = ParseCommandLine({"ps", "--json"});
  ASSERT_TRUE(ps.options);
  EXPECT_EQ(ps.options->verb, Verb::kPs);
  EXPECT_TRUE(ps.options->json);
  EXPECT_EQ(ParseCommandLine({"gpus"}).options->verb, Verb::kGpus);
}

}  // namespace
}  // namespace prorata::cli
