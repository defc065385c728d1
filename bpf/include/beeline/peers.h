/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pairs of hosts with a flow, by which a packet without ports, a later fragment, may be a
 * reply.
 */
#pragma once

#include <beeline/flow_table.h>

enum bl_peers_limits {
	/* How long a flow may be idle and its replies still be expected. */
	BL_PEERS_SECONDS = 300,
};

/* Where in bl_peers the pair is. Both are BL_ALIGNED. */
static __always_inline __u32 bl_peers_place(const union bl_addr *from, const union bl_addr *to)
{
	const __u64 *a = (const __u64 *)from, *b = (const __u64 *)to;
	__u64 mixed = (a[1] + a[0] * 0xbf58476d1ce4e5b9ULL) * 0x94d049bb133111ebULL;

	mixed ^= mixed >> 31;
	mixed += b[1] + b[0] * 0xbf58476d1ce4e5b9ULL;
	return mixed * 0x9e3779b97f4a7c15ULL >> (64 - BL_PEERS_SHIFT);
}

/* Note that @from may answer @to. @now is of bl_flow_now(). */
static __always_inline void bl_peers_note(const union bl_addr *from, const union bl_addr *to,
					  __u32 now)
{
	bl_value(bl_peers)->second[bl_peers_place(from, to)] = now;
}

/* Whether @from may answer @to; at times true for others. */
static __always_inline bool bl_peers_has(const union bl_addr *from, const union bl_addr *to)
{
	__u32 second = bl_value(bl_peers)->second[bl_peers_place(from, to)];

	return second && bl_flow_age(bl_flow_now(), second) < BL_PEERS_SECONDS;
}
