#include "cli/command.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/options/options.h"

namespace prorata::cli {
namespace {

class CommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/prorata-command-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, mode_t mode) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << "#!/bin/sh\n";
    ::chmod(path.c_str(), mode);
    return path;
  }

  std::string folder_;
};

TEST_F(CommandTest, FindsAlongThePathAndSkipsWhatCannotRun) {
  Write("a/tool", 0644);
  const std::string second = Write("b/tool", 0755);
  std::filesystem::create_directory(folder_ + "/c");
  const std::string path = folder_ + "/none:" + folder_ + "/a:" + folder_ + "/b";
  EXPECT_EQ(FindProgram("tool", path).value(), second);
  EXPECT_EQ(FindProgram(second, "").value(), second);
}

TEST_F(CommandTest, SaysWhyNotLikeAShell) {
  const std::string plain = Write("a/plain", 0644);
  EXPECT_EQ(ExitStatusOf(FindProgram("absent", folder_ + "/a").error()), 127);
  EXPECT_EQ(ExitStatusOf(FindProgram(folder_ + "/absent", "").error()), 127);
  EXPECT_EQ(ExitStatusOf(FindProgram("plain", folder_ + "/a").error()), 126);
  EXPECT_EQ(ExitStatusOf(FindProgram(plain, "").error()), 126);
  EXPECT_EQ(ExitStatusOf(FindProgram(folder_ + "/a", "").error()), 126);  // a folder
}

bool Has(const std::vector<std::string>& list, const std::string& entry) {
  return std::count(list.begin(), list.end(), entry) == 1;
}

TEST_F(CommandTest, EnvironmentPutsTheLibraryFirstAndKeepsTheRest) {
  const auto made = ShareEnvironment(
      {"HOME=/h", "LD_LIBRARY_PATH=/old:/older", "LD_PRELOAD=/p.so", "PRORATA_SHARE=/outer"}, "/s",
      "/lib dir");
  EXPECT_FALSE(made);  // the loader cuts LD_PRELOAD at spaces
  const auto environment = ShareEnvironment(
      {"HOME=/h", "LD_LIBRARY_PATH=/old:/older", "LD_PRELOAD=/p.so", "PRORATA_SHARE=/outer"}, "/s",
      "/lib");
  ASSERT_TRUE(environment);
  EXPECT_EQ(environment->size(), 4u);
  EXPECT_TRUE(Has(*environment, "HOME=/h"));
  EXPECT_TRUE(Has(*environment, "PRORATA_SHARE=/s"));
  EXPECT_TRUE(Has(*environment, "LD_LIBRARY_PATH=/lib:/old:/older"));
  EXPECT_TRUE(Has(*environment, "LD_PRELOAD=/lib/libcuda.so.1:/p.so"));
}

TEST_F(CommandTest, AnEmptyOldPathAddsNoCurrentFolder) {
  const auto environment = ShareEnvironment({"LD_LIBRARY_PATH="}, "/s", "/lib");
  ASSERT_TRUE(environment);
  EXPECT_TRUE(Has(*environment, "LD_LIBRARY_PATH=/lib"));
}

TEST_F(CommandTest, FindsTheLibraryInABuildAndInstalled) {
  EXPECT_EQ(FindLibraryDir(folder_ + "/bin/prorata").error().code, "no_client_library");
  Write("lib/libcuda.so.1", 0644);
  EXPECT_EQ(FindLibraryDir(folder_ + "/bin/prorata").value(), folder_ + "/lib");
  Write("lib/prorata/libcuda.so.1", 0644);
  EXPECT_EQ(FindLibraryDir(folder_ + "/bin/prorata").value(), folder_ + "/lib/prorata");
}

TEST_F(CommandTest, BecomesTheProgram) {
  const pid_t child = ::fork();
  if (child == 0) {
    BecomeProgram("/bin/sh", {"sh", "-c", "exit $STATUS"}, {"STATUS=41"});
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 41);
}

TEST_F(CommandTest, ExecThatFailsAfterAllIsAnError) {
  const std::string path = Write("bad", 0755);
  std::ofstream(path) << "#!/no/such/interpreter\n";
  EXPECT_EQ(BecomeProgram(path, {"bad"}, {}).code, "not_found");
  std::ofstream(path) << "neither ELF nor script";
  EXPECT_EQ(BecomeProgram(path, {"bad"}, {}).code, "not_executable");
}

}  // namespace
}  // namespace prorata::cli
