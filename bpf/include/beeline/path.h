/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The verdict of a packet, and the path by which a translated one is sent on, of every program.
 */
#pragma once

#include <beeline/packet.h>

/* The hook that runs; a constant of each program. */
enum bl_hook {
	BL_HOOK_INGRESS, /* of a device that faces clients or other nodes */
	BL_HOOK_EGRESS,
	BL_HOOK_POD_INGRESS, /* of the host's side of a pod's device: from the pod */
	/* To the pod; also from the devices of pods, for replies to this node alone. */
	BL_HOOK_POD_EGRESS,
};

/* The verdict of a packet. */
enum bl_verdict {
	BL_VERDICT_PASSES, /* untouched */
	BL_VERDICT_TRANSLATED, /* by struct bl_path */
	BL_VERDICT_DROPPED,
	BL_VERDICT_REFUSED, /* the client is told */
	BL_VERDICT_UNKNOWN, /* it begins a new flow */
};

/* How a translated packet is sent on. */
struct bl_path {
	struct bl_rewrite to;
	/* Index in bl_device; 0 is the host's stack, BL_DEVICE_ROUTED where the route
	 * leads, BL_DEVICE_HAIRPIN the device it is at, from which it is sent back. */
	__u32 device;
	bool back; /* to the pod that it came from */
	bool tunnel; /* in the tunnel to the node that is the source port of @to */
	bool clamp; /* with an MSS that leaves room for the tunnel */
};
