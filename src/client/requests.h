#pragma once

// The table of questions under way; the protocol between threads is told in connection.h.

#include "protocol/frame.h"

namespace prorata::client {

// Hands a frame to whoever waits for it. Helper only.
void DeliverFrame(const protocol::FrameHeader& header, const uint8_t* body);

// The connection is gone: everyone who waits asks again. Helper only.
void LoseRequests();

// The connection stands again: wakes those who wait for one. Helper only.
void ConnectionMade();

}  // namespace prorata::client
