/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The algorithms that count active connections: lc, wlc, sed and nq of IPVS.
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
	least.load += (bl_same(algorithm, BL_ALGORITHM_SHORTEST_DELAY) |
		       (bl_same(algorithm, BL_ALGORITHM_NEVER_QUEUE) & bl_below(0, least.load))) &
		      1;
	least.load |= none;
	least.weight =
		bl_either(none | bl_same(algorithm, BL_ALGORITHM_LEAST_CONN), 1, least.weight);
	return least;
}

/*
 * Find the backend of @set with the least load: its id, and its load in the upper half of the
 * word. The load is ~0 when there is none. Of several that are as good, each is found by its
 * weight. @hash is a number spread over 32 bits.
 */
__noinline __u64 bl_least_find(__u64 set, __u32 algorithm, __u32 hash)
{
	__u32 start = (__u64)hash * bl_set_count(set) >> 32;
	__u32 best = ~0U, load = ~0U, weight = 1, tied = 0;
	const struct bl_backend_entry *backend;
	struct bl_active_entry *active;
	__u64 slot, mine, least, take;
	struct bl_least at;
	const __u32 *id;

	for (__u32 i = 0; i < BL_LEAST_SLOTS && i < bl_set_count(set); i++) {
		barrier_var(set); /* what follows from it would take room on the stack */
		slot = (__u64)start + i;
		slot -= bl_set_count(set) & ~bl_below(slot, bl_set_count(set));
		id = bl_slot_lookup(bl_set_first(set) + slot);
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

/*
 * Choose the backend of @set with the least load and count a connection of @kind there, in one
 * step: its load is still the one that it was chosen by. @hash is a number spread over 32 bits.
 *
 * When other CPUs change that again and again, the last one is chosen. False, and nothing is
 * counted, when there is none.
 */
static __always_inline bool bl_least_select(__u64 set, __u32 algorithm, enum bl_active_kind kind,
					    __u32 hash, struct bl_backend_ref *ref)
{
	const struct bl_backend_entry *backend;
	__u64 found, taken;

	for (int try = 0; try < BL_LEAST_TRIES; try++) {
		found = bl_least_find(set, algorithm, hash);
		if (found >> 32 == ~0U)
			return false;
		taken = bl_least_take(found, algorithm, kind);
		ref->id = taken;
		ref->generation = taken >> 32;
		if (taken != ~0ULL)
			return true;
	}
	backend = bl_backend_lookup(found);
	if (!backend)
		return false;
	ref->id = found;
	ref->generation = backend->generation;
	return bl_active_add(ref->id, ref->generation, kind);
}
