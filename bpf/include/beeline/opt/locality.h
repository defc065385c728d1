/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * lblc and lblcr of IPVS stay with a backend, or with several, as long as these are not overloaded;
 * they are its servers.
 *
 * IPVS remembers servers by destination address. A Service port has one in each family, so
 * what is remembered is in the entry of each backend.
 */
#pragma once

#include <beeline/opt/least_conn.h>

/* Whether connections of a Service with this enum bl_algorithm stay with its servers. */
static __always_inline bool bl_localizes(__u32 algorithm)
{
	return bl_locality_idle && algorithm >= BL_ALGORITHM_LOCALITY &&
	       algorithm <= BL_ALGORITHM_LOCALITY_REPLICATED;
}

/* Where a node starts to look in any set: of a large one, it keeps to one part. */
static __always_inline __u32 bl_locality_place(void)
{
	return bl_seed * 0x85ebca6bU;
}

/* The server that a search has found. */
struct bl_locality_best {
	__u32 id;
	__u32 load;
	__u32 weight;
	bool spare; /* a backend, server or not, has less than half as many connections as weight */
};

/*
 * Take the backend of the slot at @index if it is a server and has less load than @best, or with
 * @most no less. False when it gets no connections. Not inline as bl_least_step.
 */
__noinline bool bl_locality_step(__u64 set, __u32 index, __u64 oldest, bool most,
				 struct bl_locality_best *best)
{
	struct bl_active_entry *active;
	struct bl_least at;
	__u64 mine, other;

	if (!best)
		return false;
	active = bl_least_look(set, bl_locality_place(), index, BL_ALGORITHM_WEIGHTED_LEAST_CONN,
			       &at);
	if (!active)
		return false;
	if (2 * (__u64)at.load < at.weight)
		best->spare = true;
	mine = (__u64)at.load * best->weight;
	other = (__u64)best->load * at.weight;
	if (bl_active_served(active, at.generation) <= oldest ||
	    (most ? mine < other : mine >= other))
		return true;
	best->id = at.id;
	best->load = at.load;
	best->weight = at.weight;
	return true;
}

/*
 * Find the server of @set with the least load, the first of several: as by bl_least_find. A
 * backend is a server when it was served after @oldest. ~0 when there is none, or it has more
 * connections than weight while another backend has less than half as many.
 */
__noinline __u64 bl_locality_find(__u64 set, __u64 oldest)
{
	struct bl_locality_best best = {.id = ~0U, .load = ~0U, .weight = 1};

	for (__u32 i = 0; i < BL_LEAST_SLOTS && i < bl_set_count(set); i++)
		bl_locality_step(set, i, oldest, false, &best);
	if (best.spare && best.load > best.weight)
		return ~0ULL;
	return (__u64)best.load << 32 | best.id;
}

/* The server of @set with the highest load, the last of several; ~0 when there is none. */
__noinline __u32 bl_locality_busiest(__u64 set)
{
	struct bl_locality_best best = {.id = ~0U, .weight = 1};

	for (__u32 i = 0; i < BL_LEAST_SLOTS && i < bl_set_count(set); i++)
		bl_locality_step(set, i, 0, true, &best);
	return best.id;
}

/* A change of the servers of a set. */
struct bl_locality_change {
	__u64 taken; /* as by bl_least_take: a server from now on */
	__u64 now;
	__u64 others; /* the time that other servers get; 0: they are none any more */
	__u32 dropped; /* is no server any more */
};

/* Change the backend of the slot at @index. False when there is none. */
__noinline bool bl_locality_set(__u64 set, __u32 index, const struct bl_locality_change *change)
{
	const __u32 *id = bl_least_slot(set, bl_locality_place(), index);
	struct bl_active_entry *active = id ? bl_active_lookup(*id) : NULL;

	if (!change || !active)
		return false;
	if (*id == (__u32)change->taken) {
		active->noted_of = change->taken >> 32;
		active->noted = change->now;
	} else if (active->noted) {
		active->noted = *id == change->dropped ? 0 : change->others;
	}
	return true;
}

/* Change the servers of @set, see struct bl_locality_change. */
__noinline bool bl_locality_change(__u64 set, __u64 taken, __u64 now, __u64 others, __u32 dropped)
{
	struct bl_locality_change change = {
		.taken = taken, .now = now, .others = others, .dropped = dropped};

	for (__u32 i = 0; i < BL_LEAST_SLOTS && i < bl_set_count(set); i++)
		bl_locality_set(set, i, &change);
	return true;
}

/*
 * Note that lblc or lblcr has chosen @taken, as by bl_least_take, of @set. One that was no server
 * becomes one: with lblc the only one, with lblcr one more. With lblcr another one is taken back
 * when there was no change for long. False when it cannot be noted.
 */
__noinline bool bl_locality_note(__u64 set, __u32 algorithm, __u64 taken)
{
	struct bl_active_entry *active = bl_active_lookup(taken);
	__u64 now = bpf_ktime_get_ns(), served;
	__u32 dropped = ~0U;

	if (!active)
		return false;
	served = bl_active_served(active, taken >> 32);
	if (algorithm == BL_ALGORITHM_LOCALITY) {
		if (!served)
			return bl_locality_change(set, taken, now, 0, dropped);
		active->noted = now;
		return true;
	}
	if (served && now - served < bl_locality_idle)
		return true;
	if (served) {
		active->noted = 0; /* the one to drop is another */
		dropped = bl_locality_busiest(set);
	}
	return bl_locality_change(set, taken, now, now, dropped);
}

/* Find the backend of @set that lblc or lblcr chooses, as by bl_least_find. */
static __always_inline __u64 bl_locality_choose(__u64 set, __u32 algorithm, __u32 hash)
{
	__u64 now = bpf_ktime_get_ns(), oldest = 0, found;

	if (algorithm == BL_ALGORITHM_LOCALITY && now > bl_locality_idle)
		oldest = now - bl_locality_idle;
	found = bl_locality_find(set, oldest);
	if (found >> 32 == ~0U)
		found = bl_least_find(set, algorithm, bl_locality_place(), hash);
	return found;
}
