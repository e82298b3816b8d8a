#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sim/core/kill_support.h"

namespace prorata::simgpu {

// Where processes of a chaos test leave what they share, in memory that all of them see. A name is
// read while others change it: a torn one must be refused.
struct Exchange {
  struct Offer {
    std::atomic<uint64_t> handle;
    std::atomic<uint64_t> cookie;
  };
  static constexpr size_t kStalls = 8;
  std::array<Offer, kStalls> memory;
  std::array<Offer, kStalls> events;
  // Datagram sockets: file descriptors lie in the buffer between them.
  int sending = -1;
  int receiving = -1;
  // How often it was done, so that a test can tell that it was.
  std::atomic<uint32_t> imported;
  std::atomic<uint32_t> received;
  std::atomic<uint32_t> opened;
  std::atomic<uint32_t> moved;
};

// A descriptor that lies between the sockets and a byte that says what it is; -1 when none does.
int ReceiveDescriptor(int socket, char* what);

// One process of a chaos test: makes, uses, shares and destroys everything at random until it is
// killed.
class Chaos {
 public:
  // With `step` it kills itself at a random step; else it goes on until somebody does.
  Chaos(const MachineConfig& config, const std::string& folder, unsigned seed, bool step,
        Exchange* exchange);

  [[noreturn]] void Run();

 private:
  Handle New(StreamKind kind);
  Handle AnyStream() { return streams_[random_() % streams_.size()]; }
  Exchange::Offer& AnyStall(std::array<Exchange::Offer, Exchange::kStalls>& offers) {
    return offers[random_() % offers.size()];
  }

  void LiveInAContext();
  void Act();
  void Alloc();
  void Submit();
  void RunActions();
  void Execute();

  // chaos_sharing.cc
  void ActWithOthers();
  void Move();
  void Share();
  void Import();
  void Drop();
  void Send();
  void Receive();
  void ActOnEvents();
  void Hold(const SharedMemory& memory, std::vector<Handle>* shares);

  std::minstd_rand random_;
  Exchange& exchange_;
  std::unique_ptr<Machine> machine_;
  Handle process_ = 0;
  std::vector<Handle> process_shares_;  // go with the process
  std::vector<ShareName> pools_;
  int device_ = 0;
  // What follows goes with the context.
  Handle context_ = 0;
  std::vector<Handle> streams_;
  Handle event_ = 0;
  std::vector<std::vector<Extent>> held_;
  std::vector<Handle> shares_;
  std::vector<std::pair<Handle, Handle>> opened_;  // events and their shares
  std::thread executor_;
};

// Exit status of a member that saw something wrong; the line says what.
#define MUST(condition) \
  if (!(condition)) _exit(StatusOf(__FILE__, __LINE__, #condition))

int StatusOf(const char* file, int line, const char* condition);

}  // namespace prorata::simgpu
