/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Time, read cheaply: CLOCK_MONOTONIC_COARSE advances with the jiffies, which are one load; the
 * helper that reads it is a sixth of a packet's cost.
 */
#pragma once

#include <beeline/maps.h>

/*
 * How many times @unit ns CLOCK_MONOTONIC_COARSE has counted. @kept is what was returned last, below
 * the lower half of the jiffies in which it was.
 */
static __always_inline __u32 bl_clock_units(volatile __u64 *kept, __u64 unit)
{
	__u32 jiffies = bpf_jiffies64();
	__u64 clock = *kept;

	if ((__u32)clock && clock >> 32 == jiffies)
		return clock;
	clock = bpf_ktime_get_coarse_ns() / unit;
	*kept = (__u64)jiffies << 32 | (__u32)clock;
	return clock;
}
