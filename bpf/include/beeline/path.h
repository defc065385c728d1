/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The path by which a translated packet is sent on, of every program.
 */
#pragma once

#include <beeline/packet.h>

/* How a translated packet is sent on. */
struct bl_path {
	struct bl_rewrite to;
	/* Index in bl_device; 0 is the host's stack, BL_DEVICE_ROUTED where the route
	 * leads, BL_DEVICE_HAIRPIN the device it is at, from which it is sent back. */
	__u32 device;
	bool back; /* to the pod that it came from */
	bool tunnel; /* in the tunnel to the node that is the source port of @to */
	bool reply; /* it is the backend's */
	bool clamp; /* with an MSS that leaves room for the tunnel */
};
