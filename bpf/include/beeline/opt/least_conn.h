/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The backend with the least load by active connections: lc, wlc, sed and nq of IPVS.
 */
#pragma once

#include <beeline/active.h>

enum bl_least_limits {
	/* Slots of a set that are looked at: of a larger one, neighbours from anywhere. */
	BL_LEAST_SLOTS = 64,
	/* How often: again when another CPU has counted at the backend meanwhile. */
	BL_LEAST_TRIES = 4,
};

/*
 * All bits when @a is below @b, else none; both are below 2^63. The search goes without
 * branches: the verifier would follow each of them for each slot.
 */
static __always_inline __u64 bl_below(__u64 a, __u64 b)
{
	__u64 mask = a - b;

	barrier_var(mask); /* else clang makes it a branch, here and below */
	mask = (__s64)mask >> 63;
	barrier_var(mask);
	return mask;
}

/* Likewise, when they are the same. */
static __always_inline __u64 bl_same(__u64 a, __u64 b)
{
	return bl_below(a ^ b, 1);
}

static __always_inline __u64 bl_either(__u64 mask, __u64 set, __u64 clear)
{
	return (set & mask) | (clear & ~mask);
}

/*
 * 1 for a mask of all bits, else 0. With `mask & 1` newer verifiers would follow both: they do
 * where a constant meets a mask.
 */
static __always_inline __u64 bl_one(__u64 mask)
{
	return mask >> 63;
}

/* A backend with what decides whether it is chosen. */
struct bl_least {
	__u32 generation;
	__u32 load; /* its connections, as the algorithm weighs them; ~0: gets none */
	__u32 weight;
};

/* How a backend is looked at by an algorithm, with @sockets and @flows in its words of bl_active. */
static __always_inline struct bl_least bl_least_look(const struct bl_backend_entry *backend,
						     __u64 sockets, __u64 flows, __u32 algorithm)
{
	struct bl_least least = {.generation = backend->generation, .weight = backend->weight};
	__u64 none = bl_same(least.weight, 0);

	least.load = ((__u32)sockets & bl_same(sockets >> 32, least.generation)) +
		     ((__u32)flows & bl_same(flows >> 32, least.generation));
	least.load +=
		bl_one(bl_same(algorithm, BL_ALGORITHM_SHORTEST_DELAY) |
		       (bl_same(algorithm, BL_ALGORITHM_NEVER_QUEUE) & bl_below(0, least.load)));
	least.load |= none;
	none |= bl_same(algorithm, BL_ALGORITHM_LEAST_CONN);
	least.weight = (least.weight & ~none) | bl_one(none);
	return least;
}

/* The slot of @set that is looked at @index after the first; @place as of bl_least_find. */
static __always_inline const __u32 *bl_least_slot(__u64 set, __u32 place, __u32 index)
{
	__u64 slot = (place * (__u64)bl_set_count(set) >> 32) + index;

	slot -= bl_set_count(set) & ~bl_below(slot, bl_set_count(set));
	return bl_slot_lookup(bl_set_first(set) + slot);
}

/*
 * Find the backend of @set with the least load: its id, and its load in the upper half of the
 * word. The load is ~0 when there is none. Of several that are as good, each is found by its
 * weight. @hash is a number spread over 32 bits, and so is @place, where the search starts.
 */
__noinline __u64 bl_least_find(__u64 set, __u32 algorithm, __u32 place, __u32 hash)
{
	__u32 best = ~0U, load = ~0U, weight = 1, tied = 0;
	const struct bl_backend_entry *backend;
	struct bl_active_entry *active;
	__u64 mine, least, take;
	struct bl_least at;
	const __u32 *id;

	for (__u32 i = 0; i < BL_LEAST_SLOTS && i < bl_set_count(set); i++) {
		barrier_var(set); /* what follows from it would take room on the stack */
		id = bl_least_slot(set, place, i);
		active = id ? bl_active_lookup(*id) : NULL;
		backend = active ? bl_backend_lookup(*id) : NULL;
		if (!backend)
			return ~0ULL;
		at = bl_least_look(backend, bl_active_word(active, BL_ACTIVE_SOCKETS),
				   bl_active_word(active, BL_ACTIVE_FLOWS), algorithm);
		mine = (__u64)at.load * weight;
		least = (__u64)load * at.weight;
		take = ~bl_below(least, mine);
		tied = (tied & ~bl_below(mine, least)) + (at.weight & take);
		hash = hash * 1664525 + 1013904223;
		take &= bl_below((__u64)hash * tied >> 32, at.weight);
		best = bl_either(take, *id, best);
		load = bl_either(take, at.load, load);
		weight = bl_either(take, at.weight, weight);
	}
	return (__u64)load << 32 | best;
}

/*
 * Count a connection of @kind at the backend that is @found as by bl_least_find. Returns its id,
 * and its generation in the upper half; ~0 when it has another load by now.
 */
__noinline __u64 bl_least_take(__u64 found, __u32 algorithm, enum bl_active_kind kind)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(found);
	struct bl_active_entry *active = bl_active_lookup(found);
	__u64 sockets, flows;
	struct bl_least at;

	if (!backend || !active)
		return ~0ULL;
	sockets = bl_active_word(active, BL_ACTIVE_SOCKETS);
	flows = bl_active_word(active, BL_ACTIVE_FLOWS);
	at = bl_least_look(backend, sockets, flows, algorithm);
	if (at.load != found >> 32 ||
	    !bl_active_take(active, kind, kind == BL_ACTIVE_SOCKETS ? sockets : flows,
			    at.generation))
		return ~0ULL;
	return (__u64)at.generation << 32 | (__u32)found;
}
