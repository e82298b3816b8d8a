#pragma once

// For tests of Gangs: several devices with a TimeSharing each, programs over some of them whose
// kernels may wait for their peers, and an agent, in virtual time. Everything happens in steps of a
// tenth of a millisecond: what a program and the agent tell each other takes one step, and now and
// then a program does nothing for a while. A device gives its steps in turn to those that have
// kernels on it; one that waits for its peer uses them up.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "policy/gangs.h"
#include "policy/time_sharing.h"

namespace prorata::policy::testing {

inline constexpr int64_t kStepNs = 100'000;
inline constexpr int64_t kStepsInMs = 10;

struct Job {
  ComputeTerms terms;
  std::vector<size_t> devices = {0};
  enum class Gang : uint8_t { kNever, kIfItStalls, kAlways } gang = Gang::kIfItStalls;
  int collective_every = 0;  // not 0: every so manieth kernel ends with those on its other devices
  int64_t kernel_steps = 5;
  int64_t burst_kernels = 0;  // between two gaps; 0: no gaps
  int64_t gap_steps = 0;
  int64_t start_step = 0;
  int64_t stop_step = INT64_MAX;
};

class Machines {
 public:
  Machines(size_t devices, std::vector<Job> jobs, uint32_t seed)
      : random_(seed), devices_(devices) {
    for (Device& device : devices_) device.sharing = std::make_unique<TimeSharing>();
    for (Job& job : jobs) programs_.emplace_back().job = std::move(job);
    for (Program& program : programs_) program.members.resize(program.job.devices.size());
  }

  void RunUntil(int64_t end_step) {
    for (; step_ < end_step; ++step_) {
      for (size_t i = 0; i < programs_.size(); ++i) StartOrStop(i);
      for (Program& program : programs_) {
        if (program.there) Launch(program);
      }
      for (size_t device = 0; device < devices_.size(); ++device) RunDevice(device);
      for (size_t i = 0; i < programs_.size(); ++i) Tell(i);
      for (size_t device = 0; device < devices_.size(); ++device) Decide(device);
      StepGangs();
      for (size_t i = 0; i < programs_.size(); ++i) Judge(i);
      for (size_t device = 0; device < devices_.size(); ++device) JudgeDevice(device);
    }
  }

  int64_t step() const { return step_; }
  bool IsGang(size_t i) const { return gangs_.IsGang(i); }
  // Kernels that came to their end on all of its devices.
  int64_t Done(size_t i) const {
    int64_t least = INT64_MAX;
    for (const Member& member : programs_[i].members) least = std::min(least, member.done);
    return least;
  }
  int64_t UsedSteps(size_t i, size_t member) const { return programs_[i].members[member].used; }
  // In steps: for how long at most it waited for a lease that no limit kept from it; had one of its
  // leases as a gang and waited for another; made no kernel although it had work.
  int64_t longest_wait(size_t i) const { return programs_[i].longest_wait; }
  int64_t longest_torn(size_t i) const { return programs_[i].longest_torn; }
  int64_t longest_rest(size_t i) const { return programs_[i].longest_rest; }
  // For how long at most a device stood still while somebody waited for it.
  int64_t longest_idle() const { return longest_idle_; }
  const std::string& failure() const { return failure_; }

 private:
  struct Kernel {
    int64_t left;
    bool collective;
    int64_t number;
  };
  struct Member {
    bool open = false, contended = false;
    int64_t away_until = 0;  // its host has no processor
    int64_t launched = 0, done = 0, used = 0, queued = 0;
    int64_t quiet_steps = 0;  // nothing to do, under this lease
    int64_t wait_since = -1;  // for a lease
    std::deque<Kernel> queue;
  };
  struct Program {
    Job job;
    bool there = false, was_there = false;
    int64_t pause_until = 0;
    std::vector<Member> members;
    int64_t torn_since = -1, rest_since = -1, rest_done = 0;
    int64_t longest_wait = 0, longest_torn = 0, longest_rest = 0;
  };
  struct Device {
    std::unique_ptr<TimeSharing> sharing;
    size_t last = 0;  // who had the last step
    int64_t idle_since = -1;
  };

  int64_t now() const { return step_ * kStepNs; }
  int64_t Pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = "at " + std::to_string(step_) + ": " + what;
  }

  void StartOrStop(size_t i) {
    Program& program = programs_[i];
    const Job& job = program.job;
    if (!program.there && !program.was_there && step_ >= job.start_step) {
      program.there = program.was_there = true;
      for (const size_t device : job.devices) devices_[device].sharing->Add(i, job.terms, 0, now());
      if (job.gang != Job::Gang::kNever) {
        gangs_.Add(i, job.devices, job.gang == Job::Gang::kAlways);
      }
    } else if (program.there && step_ >= job.stop_step) {
      program.there = false;
      gangs_.Remove(i);
      for (const size_t device : job.devices) devices_[device].sharing->Remove(i, now());
      for (Member& member : program.members) member = {};
    }
  }

  bool HasWork(const Program& program, const Member& member) const {
    const int64_t burst = program.job.burst_kernels;
    return program.there &&
           (burst == 0 || member.launched < program.members[0].done / burst * burst + burst) &&
           step_ >= program.pause_until;
  }

  void Launch(Program& program) {
    const Job& job = program.job;
    for (Member& member : program.members) {
      if (step_ < member.away_until) continue;
      if (Pick(0, 999) == 0) {
        member.away_until = step_ + Pick(1, 30);
        continue;
      }
      const int64_t bound = (member.contended ? 2 : 20) * kStepsInMs;
      while (member.open && HasWork(program, member) && member.queued < bound) {
        ++member.launched;
        const bool meets = job.collective_every > 0 && member.launched % job.collective_every == 0;
        member.queue.push_back({job.kernel_steps, meets, member.launched});
        member.queued += job.kernel_steps;
      }
    }
  }

  void RunDevice(size_t number) {
    Device& device = devices_[number];
    for (size_t k = 1; k <= programs_.size(); ++k) {
      const size_t i = (device.last + k) % programs_.size();
      Member* member = On(i, number);
      if (member == nullptr || member->queue.empty()) continue;
      device.last = i;
      ++member->used;
      Kernel& kernel = member->queue.front();
      kernel.left = std::max<int64_t>(0, kernel.left - 1);
      if (kernel.left == 0 && (!kernel.collective || Met(programs_[i], kernel.number))) {
        member->queued -= programs_[i].job.kernel_steps;
        ++member->done;
        member->queue.pop_front();
        if (programs_[i].job.burst_kernels > 0 && member == programs_[i].members.data() &&
            member->done % programs_[i].job.burst_kernels == 0) {
          programs_[i].pause_until = step_ + programs_[i].job.gap_steps;
        }
      }
      return;
    }
  }
  static bool Met(const Program& program, int64_t number) {
    return std::all_of(program.members.begin(), program.members.end(), [&](const Member& member) {
      if (member.done >= number) return true;
      return !member.queue.empty() && member.queue.front().number == number &&
             member.queue.front().left == 0;
    });
  }
  Member* On(size_t i, size_t device) {
    Program& program = programs_[i];
    if (!program.there) return nullptr;
    for (size_t k = 0; k < program.members.size(); ++k) {
      if (program.job.devices[k] == device) return &program.members[k];
    }
    return nullptr;
  }

  void Report(size_t device) {
    for (size_t i = 0; i < programs_.size(); ++i) {
      const Member* member = On(i, device);
      if (member == nullptr) continue;
      int64_t backlog = 0;
      for (const Kernel& kernel : member->queue) backlog += kernel.left;
      if (backlog == 0 && !member->queue.empty()) backlog = 1;
      devices_[device].sharing->Report(i, static_cast<uint64_t>(member->used * kStepNs),
                                       backlog * kStepNs);
    }
  }

  // What its members have to say; the agent hears it in this step.
  void Tell(size_t i) {
    Program& program = programs_[i];
    for (size_t k = 0; program.there && k < program.members.size(); ++k) {
      Member& member = program.members[k];
      TimeSharing& sharing = *devices_[program.job.devices[k]].sharing;
      const bool works = HasWork(program, member);
      member.quiet_steps =
          member.open && !works && member.queue.empty() ? member.quiet_steps + 1 : 0;
      if (member.quiet_steps == 3 && member.contended) sharing.Idle(i, now());
      if (!member.open && member.queue.empty() && sharing.Draining(i)) sharing.Drained(i, now());
      const bool waits = works && !member.open && step_ >= member.away_until;
      if (waits && !sharing.State(i).wanting) sharing.Wanted(i, now());
    }
  }

  void Decide(size_t number) {
    Device& device = devices_[number];
    Report(number);
    for (const LeasePolicy::Lease& lease : device.sharing->Decide(now()).changes) {
      Member& member = *On(lease.share, number);
      member.open = lease.open;
      member.contended = lease.contended;
      member.quiet_steps = 0;
    }
  }

  void StepGangs() {
    const auto see = [this](uint64_t share, size_t device) {
      return devices_[device].sharing->SeeGang(share, now());
    };
    for (int round = 0; round < 8; ++round) {
      const Gangs::Decisions decisions = gangs_.Decide(now(), see);
      if (decisions.orders.empty()) return;
      for (const Gangs::Order& order : decisions.orders) {
        if (On(order.share, order.device) == nullptr) Fail("an order for who is not there");
        TimeSharing& sharing = *devices_[order.device].sharing;
        if (order.what == Gangs::Order::What::kTurn) {
          sharing.SetGang(order.share, order.turn, now());
        } else {
          sharing.EndGangDrain(order.share, now());
        }
      }
      for (size_t device = 0; device < devices_.size(); ++device) Decide(device);
    }
  }

  void Judge(size_t i) {
    Program& program = programs_[i];
    const auto since = [this](bool is, int64_t& began, int64_t& longest) {
      if (!is) began = -1;
      if (is && began < 0) began = step_;
      if (is) longest = std::max(longest, step_ - began);
    };
    bool any_open = false, any_waits = false, works = false;
    for (size_t k = 0; k < program.members.size(); ++k) {
      Member& member = program.members[k];
      const TimeSharing& sharing = *devices_[program.job.devices[k]].sharing;
      const bool waits = program.there && sharing.State(i).wanting && !member.open;
      since(waits && !sharing.AtLimit(i), member.wait_since, program.longest_wait);
      any_open = any_open || member.open;
      any_waits = any_waits || waits;
      works = works || HasWork(program, member);
    }
    since(program.there && any_open && any_waits && gangs_.IsGang(i), program.torn_since,
          program.longest_torn);
    const int64_t done = program.there ? Done(i) : 0;
    const bool rests = program.there && works && done == program.rest_done;
    program.rest_done = done;
    since(rests, program.rest_since, program.longest_rest);
  }

  void JudgeDevice(size_t number) {
    Device& device = devices_[number];
    int open = 0, together = 0;
    bool busy = false, waits = false;
    for (size_t i = 0; i < programs_.size(); ++i) {
      const Member* member = On(i, number);
      if (member == nullptr) continue;
      const LeasePolicy::ShareState state = device.sharing->State(i);
      if (state.open != member->open) Fail("a lease that the policy did not give");
      open += state.open;
      together += state.together;
      if (state.together && gangs_.IsGang(i)) Fail("a gang in company");
      busy = busy || !member->queue.empty();
      waits = waits || (programs_[i].job.devices.size() == 1 && state.wanting && !member->open &&
                        !device.sharing->AtLimit(i));
    }
    if (open > 1 && together != open) Fail("two hold device " + std::to_string(number));
    if (busy || !waits) device.idle_since = -1;
    if (!busy && waits && device.idle_since < 0) device.idle_since = step_;
    if (!busy && waits) longest_idle_ = std::max(longest_idle_, step_ - device.idle_since);
  }

  std::mt19937 random_;
  std::vector<Device> devices_;
  std::vector<Program> programs_;
  Gangs gangs_;
  int64_t step_ = 0;
  int64_t longest_idle_ = 0;
  std::string failure_;
};

}  // namespace prorata::policy::testing
