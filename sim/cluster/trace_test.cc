#include "sim/cluster/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace prorata::sim::cluster {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  ~TraceTest() override { unlink(path_.c_str()); }

  std::string Nodes(const std::string& text, bool cpu_nodes = false) {
    Write(text);
    const auto nodes = ReadNodes(path_, cpu_nodes);
    return nodes ? "ok" : nodes.error().message;
  }
  std::string Pods(const std::string& text) {
    Write(text);
    const auto pods = ReadPods(path_, {"T4", "A10"});
    return pods ? "ok" : pods.error().message;
  }
  std::string At(int line) const { return path_ + ":" + std::to_string(line) + ": "; }

 private:
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  std::string path_ = ::testing::TempDir() + "trace_test." + std::to_string(getpid()) + ".csv";
};

const std::string kNodes = "sn,cpu_milli,memory_mib,gpu,model\n";
const std::string kPods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";

TEST_F(TraceTest, Nodes) {
  EXPECT_EQ(Nodes(kNodes + "a,8000,100,2,T4\r\nb,8000,100,1,A10\n"), "ok");
  EXPECT_EQ(Nodes(kNodes + "a,8000,100,2,T4\nc,8000,100,0,\n", true), "ok");
  EXPECT_EQ(Nodes("links," + kNodes + "dgx1,a,8000,100,8,V100\n"), "ok");
}

TEST_F(TraceTest, BadNodesAreOneLineWithFileAndLine) {
  EXPECT_EQ(Nodes(kNodes + "a,8000,100,x,T4\n"),
            At(2) + "gpu: 'x' is not a whole number from 0 to 16");
  EXPECT_EQ(Nodes(kNodes + "a,8000,100,1,T4\nb,8000,100,17,T4\n"),
            At(3) + "gpu: '17' is not a whole number from 0 to 16");
  EXPECT_EQ(Nodes(kNodes + "a,8000,100\n"), At(2) + "too few columns");
  EXPECT_EQ(Nodes(kNodes + "a,8000,100,1,T4,5\n"), At(2) + "too many columns");
  EXPECT_EQ(Nodes(kNodes + "a,8000,100,1,T4\na,8000,100,1,T4\n"),
            At(3) + "node a is already on line 2");
  EXPECT_EQ(Nodes(kNodes + "a,8000,100,0,\n"),
            At(2) + "node a has no GPU; --cpu-nodes allows such nodes");
  EXPECT_EQ(Nodes(kNodes + "a,8000,100,1,\n"), At(2) + "model: node a has GPUs of no model");
  EXPECT_EQ(Nodes("sn,cpu_milli,gpu,model\n"), At(1) + "there is no column 'memory_mib'");
  EXPECT_EQ(Nodes("links," + kNodes + "ring,a,8000,100,8,T4\n"),
            At(2) + "links: 'ring' is not even, dgx1 or pcie2x4");
  EXPECT_NE(Nodes("").find("the file is empty"), std::string::npos);
  EXPECT_NE(Nodes(kNodes + "a,8000,100,0,\n", true).find("no node has a GPU"), std::string::npos);
  EXPECT_EQ(ReadNodes("/nowhere/x.csv", false).error().message, "/nowhere/x.csv: cannot be opened");
}

TEST_F(TraceTest, BadPodsAreOneLineWithFileAndLine) {
  EXPECT_EQ(Pods(kPods + "p,1000,10,1,500,T4|A10\n"), "ok");
  EXPECT_EQ(Pods(kPods + "p,1000,10,1,500,H100\n"),
            At(2) + "gpu_spec: no node has the model 'H100'; there are T4, A10");
  EXPECT_EQ(Pods(kPods + "p,1000,10,1,1001,\n"),
            At(2) + "gpu_milli: '1001' is not a whole number from 0 to 1000");
  EXPECT_EQ(Pods(kPods + "p,1000,10,1,0,\n"),
            At(2) + "num_gpu 1 and gpu_milli 0 contradict each other");
  EXPECT_EQ(Pods(kPods + "p,1000,10,0,0,\np,1000,10,0,0,\n"), At(3) + "pod p is already on line 2");
  EXPECT_EQ(Pods(kPods + "p,99999999999999999999,10,0,0,\n"),
            At(2) + "cpu_milli: '99999999999999999999' is not a whole number from 0 to 100000000");
  EXPECT_NE(Pods(kPods).find("there are no pods"), std::string::npos);
  EXPECT_EQ(Pods("creation_time,deletion_time," + kPods + "5,4,p,1000,10,0,0,\n"),
            At(2) + "deletion_time is before creation_time");
}

}  // namespace
}  // namespace prorata::sim::cluster
