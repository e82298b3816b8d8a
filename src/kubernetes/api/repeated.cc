#include "kubernetes/api/repeated.h"

#include <utility>

namespace prorata::kubernetes {

Repeated::Repeated(std::chrono::milliseconds every, std::chrono::milliseconds pause,
                   std::function<void()> work)
    : every_(every), pause_(pause), work_(std::move(work)), thread_([this] { Run(); }) {}

void Repeated::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  due_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Repeated::Soon() {
  {
    const std::lock_guard lock(mutex_);
    soon_ = true;
  }
  due_.notify_all();
}

void Repeated::Run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    due_.wait_for(lock, every_, [this] { return stopped_ || soon_; });
    if (stopped_) return;
    soon_ = false;
    lock.unlock();
    work_();
    lock.lock();
    due_.wait_for(lock, pause_, [this] { return stopped_; });
  }
}

}  // namespace prorata::kubernetes
