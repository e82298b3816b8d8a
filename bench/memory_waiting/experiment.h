#pragma once

// The experiment of ConVGPU's authors, in virtual time: containers of six sizes arrive at a fixed
// pace on one device of 5 GiB, wait for memory instead of failing, work, and go. What a policy of
// who is next makes of it: how long until all are done, and how long they were suspended.
//
// From the paper's public descriptions: the six sizes, one arrival every five seconds, 4 to 38
// containers, 5 GiB (facts/convgpu_and_cluster.md §1 says what is known and what is recalled).
// Ours, since no source gives it: each size is drawn with equal probability; the work takes 5, 10,
// 15, 25, 35 and 45 s by size, times a factor drawn from 0.5 to 1.5; half of the memory is asked
// for at the start and the rest after a tenth of the work. All policies are given the same
// containers.

#include <cstdint>
#include <string>
#include <vector>

#include "policy/memory/memory_admission.h"

namespace prorata::bench {

struct Outcome {
  double makespan_s = 0;        // from the first arrival until all are done
  double mean_suspended_s = 0;  // of all containers, those that never waited too
  double longest_wait_s = 0;    // of one container, all its waits together
};

// Deterministic: the seed draws the containers, and is the policy's if it is random.
Outcome RunExperiment(const policy::MemoryAdmission::Options& options, int containers,
                      uint64_t seed);

// One policy and number of containers: medians over the seeds.
struct Row {
  int containers = 0;
  std::string policy;  // fifo, best-fit, recent, random
  double makespan_s = 0;
  double mean_suspended_s = 0;
  double longest_wait_s = 0;
};
std::vector<Row> RunAll(const std::vector<int>& containers, uint64_t seeds);

}  // namespace prorata::bench
