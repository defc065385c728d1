/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The backend with the least load by active connections: lc, wlc, sed and nq of IPVS.
 */
#pragma once

#include <beeline/active.h>

enum bl_least_limits {
	/* Slots of a set that are looked at: of a larger one, neighbours from anywhere. */
	BL_LEAST_SLOTS = 64,
	BL_LEAST_STEP = 4, /* slots that one call looks at */
	/* How often: again when another CPU has counted at the backend meanwhile. */
	BL_LEAST_TRIES = 4,
};

/* A backend with what decides whether it is chosen. */
struct bl_least {
	__u32 id;
	__u32 generation;
	__u32 load; /* its connections, as the algorithm weighs them */
	__u32 weight; /* likewise; 0: it gets none */
};

/* Weigh a backend by an algorithm, with @sockets and @flows in its words of bl_active. */
static __always_inline void bl_least_weigh(const struct bl_backend_entry *backend, __u64 sockets,
					   __u64 flows, __u32 algorithm, struct bl_least *least)
{
	least->generation = backend->generation;
	least->load = bl_active_count(sockets, least->generation) +
		      bl_active_count(flows, least->generation);
	if (algorithm == BL_ALGORITHM_SHORTEST_DELAY ||
	    (algorithm == BL_ALGORITHM_NEVER_QUEUE && least->load))
		least->load++;
	least->weight = backend->weight;
	if (algorithm == BL_ALGORITHM_LEAST_CONN && least->weight)
		least->weight = 1;
}

/* The slot of @set that is looked at @index after the first; @place as of bl_least_find. */
static __always_inline const __u32 *bl_least_slot(__u64 set, __u32 place, __u32 index)
{
	__u32 count = bl_set_count(set);
	__u32 slot = (place * (__u64)count >> 32) + index;

	return bl_slot_lookup(bl_set_first(set) + (slot < count ? slot : slot - count));
}

/*
 * Look at the backend of a slot, as of bl_least_slot. NULL when it gets no connection, else its
 * entry of bl_active.
 */
static __always_inline struct bl_active_entry *
bl_least_look(__u64 set, __u32 place, __u32 index, __u32 algorithm, struct bl_least *least)
{
	const __u32 *id = bl_least_slot(set, place, index);
	struct bl_active_entry *active = id ? bl_active_lookup(*id) : NULL;
	const struct bl_backend_entry *backend = active ? bl_backend_lookup(*id) : NULL;

	if (!backend)
		return NULL;
	least->id = *id;
	bl_least_weigh(backend, bl_active_word(active, BL_ACTIVE_SOCKETS),
		       bl_active_word(active, BL_ACTIVE_FLOWS), algorithm, least);
	return least->weight ? active : NULL;
}

/* The best backend of the slots that have been looked at. */
struct bl_least_best {
	__u32 id;
	__u32 load;
	__u32 weight;
	__u32 tied; /* the weights of those that are as good, in all */
	__u32 hash; /* a number spread over 32 bits */
};

/* Take the backend of a slot, as of bl_least_slot, if it has less load than @best. */
static __always_inline void bl_least_compare(__u64 set, __u32 place, __u32 index, __u32 algorithm,
					     struct bl_least_best *best)
{
	struct bl_least at;
	__u64 mine, least;

	if (!bl_least_look(set, place, index, algorithm, &at))
		return;
	mine = (__u64)at.load * best->weight;
	least = (__u64)best->load * at.weight;
	if (mine > least)
		return;
	best->tied = (mine < least ? 0 : best->tied) + at.weight;
	best->hash = best->hash * 1664525 + 1013904223;
	if ((__u64)best->hash * best->tied >> 32 >= at.weight)
		return;
	best->id = at.id;
	best->load = at.load;
	best->weight = at.weight;
}

/*
 * Look at the slots from @index on, BL_LEAST_STEP of them. Not inline: so the verifier checks
 * one step of a search, not each.
 */
__noinline bool bl_least_step(__u64 set, __u32 place, __u32 index, __u32 algorithm,
			      struct bl_least_best *best)
{
	if (!best)
		return false;
	for (__u32 i = 0; i < BL_LEAST_STEP && index + i < bl_set_count(set); i++)
		bl_least_compare(set, place, index + i, algorithm, best);
	return true;
}

/*
 * Find the backend of @set with the least load: its id, and its load in the upper half of the
 * word. The load is ~0 when there is none. Of several that are as good, each is found by its
 * weight. @hash is a number spread over 32 bits, and so is @place, where the search starts.
 */
__noinline __u64 bl_least_find(__u64 set, __u32 algorithm, __u32 place, __u32 hash)
{
	struct bl_least_best best = {.id = ~0U, .load = ~0U, .weight = 1, .hash = hash};

	for (__u32 i = 0; i < BL_LEAST_SLOTS && i < bl_set_count(set); i += BL_LEAST_STEP)
		bl_least_step(set, place, i, algorithm, &best);
	return (__u64)best.load << 32 | best.id;
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
	bl_least_weigh(backend, sockets, flows, algorithm, &at);
	if (!at.weight || at.load != found >> 32 ||
	    !bl_active_take(active, kind, kind == BL_ACTIVE_SOCKETS ? sockets : flows,
			    at.generation))
		return ~0ULL;
	return (__u64)at.generation << 32 | (__u32)found;
}
