/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The choice of a backend by active connections.
 */
#pragma once

#include <beeline/opt/ewma.h>
#include <beeline/opt/locality.h>

/*
 * Find the backend of @set that an algorithm with a search of its own chooses, as by bl_least_find;
 * @weighs is the algorithm by which loads are weighed.
 */
static __always_inline __u64 bl_active_find(__u64 set, __u32 algorithm, __u32 weighs, __u32 hash)
{
	__u64 found = ~0ULL;

	if (bl_localizes(algorithm))
		return bl_locality_choose(set, algorithm, hash);
	if (algorithm == BL_ALGORITHM_EWMA)
		found = bl_ewma_find(set, hash);
	if (found >> 32 == ~0U)
		found = bl_least_find(set, weighs, hash, hash);
	return found;
}

/* Count one more connection of @kind at a backend. Returns what bl_active_select does. */
static __always_inline __u64 bl_active_count_at(__u32 id, enum bl_active_kind kind)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(id);

	if (!backend || !bl_active_add(id, backend->generation, kind))
		return ~0ULL;
	return (__u64)backend->generation << 32 | id;
}

/* Choose the backend of a slot of @set at random, and count a connection there. */
static __always_inline __u64 bl_active_random(__u64 set, enum bl_active_kind kind, __u32 hash)
{
	const __u32 *id = bl_least_slot(set, hash, 0);

	return id ? bl_active_count_at(*id, kind) : ~0ULL;
}

/*
 * Choose a backend of @set by its active connections and count one of @kind there, in one step:
 * its load is still the one that it was chosen by. @hash is a number spread over 32 bits.
 *
 * When other CPUs change that again and again, the last one is chosen. Returns its id, and its
 * generation in the upper half; ~0, and nothing is counted, when there is none.
 */
__noinline __u64 bl_active_select(__u64 set, __u32 algorithm, enum bl_active_kind kind, __u32 hash)
{
	bool searches = algorithm >= BL_ALGORITHM_LOCALITY;
	__u32 weighs = algorithm == BL_ALGORITHM_EWMA ? BL_ALGORITHM_SHORTEST_DELAY : algorithm;
	__u64 found = ~0ULL, taken = ~0ULL;

	if (algorithm == BL_ALGORITHM_COUNTED_RANDOM)
		return bl_active_random(set, kind, hash);
	for (int try = 0; try < BL_LEAST_TRIES && taken == ~0ULL; try++) {
		found = unlikely(searches) ? bl_active_find(set, algorithm, weighs, hash)
					   : bl_least_find(set, weighs, hash, hash);
		if (found >> 32 == ~0U)
			return ~0ULL;
		taken = bl_least_take(found, weighs, kind);
	}
	if (taken != ~0ULL) {
		if (bl_localizes(algorithm))
			bl_locality_note(set, algorithm, taken);
		return taken;
	}
	return bl_active_count_at(found, kind);
}
