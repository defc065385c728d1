/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The choice of a backend by active connections. lblc and lblcr of IPVS stay with a backend, or
 * with several, as long as these are not overloaded; they are its servers.
 *
 * IPVS remembers servers by destination address. A Service port has one in each family, so
 * what is remembered is in the entry of each backend.
 */
#pragma once

#include <beeline/opt/least_conn.h>

/* Whether connections of a Service with this enum bl_algorithm stay with its servers. */
static __always_inline bool bl_localizes(__u32 algorithm)
{
	return bl_locality_idle && algorithm >= BL_ALGORITHM_LOCALITY;
}

/* Where a node starts to look in any set: of a large one, it keeps to one part. */
static __always_inline __u32 bl_locality_place(void)
{
	return bl_seed * 0x85ebca6bU;
}

/* When the backend became a server, or was chosen last by lblc; 0: it is none. */
static __always_inline __u64 bl_locality_served(const struct bl_active_entry *active,
						__u32 generation)
{
	__u64 served = *(const volatile __u64 *)&active->served;

	return served & bl_same(active->server, generation);
}

enum bl_locality_order {
	BL_LOCALITY_LEAST,
	BL_LOCALITY_MOST = (1ULL << 62) - 1, /* turns the order of loads around */
};

/*
 * Find the server of @set with the least load, the first of several, or with the highest, the
 * last of several: as by bl_least_find. A backend is a server when it was served after @oldest.
 * @found, the one to begin with, and its @weight are arguments, for the verifier would follow
 * numbers that it knows for each slot.
 *
 * BL_LOCALITY_LEAST returns ~0 when there is none, or it has more connections than weight while
 * another backend has less than half as many.
 */
__noinline __u64 bl_locality_find(__u64 set, __u64 oldest, __u64 order, __u64 found, __u32 weight)
{
	const struct bl_backend_entry *backend;
	struct bl_active_entry *active;
	__u64 take, spare = 0;
	struct bl_least at;
	const __u32 *id;

	for (__u32 i = 0; i < BL_LEAST_SLOTS && i < bl_set_count(set); i++) {
		barrier_var(set);
		id = bl_least_slot(set, bl_locality_place(), i);
		active = id ? bl_active_lookup(*id) : NULL;
		backend = active ? bl_backend_lookup(*id) : NULL;
		if (!backend)
			return ~0ULL;
		/* No order is an algorithm that weighs in another way than wlc. */
		at = bl_least_look(backend, bl_active_word(active, BL_ACTIVE_SOCKETS),
				   bl_active_word(active, BL_ACTIVE_FLOWS), order);
		spare |= bl_one(bl_below(2 * (__u64)at.load, at.weight));
		take = bl_below(((__u64)at.load * weight) ^ order,
				(((found >> 32) * at.weight) ^ order) + (order & 1));
		take &= bl_below(oldest, bl_locality_served(active, at.generation));
		found = bl_either(take, (__u64)at.load << 32 | *id, found);
		weight = bl_either(take, at.weight, weight);
	}
	return found | (bl_below(weight, found >> 32) & bl_below(order, 1) & (0 - spare));
}

/*
 * Make @taken, as by bl_least_take, a server of @set at @now. Others get the time @others, 0 for
 * those that are none any more, as @dropped is not.
 */
__noinline bool bl_locality_change(__u64 set, __u64 taken, __u64 now, __u64 others, __u32 dropped)
{
	struct bl_active_entry *active;
	__u64 mine, served;
	const __u32 *id;

	for (__u32 i = 0; i < BL_LEAST_SLOTS && i < bl_set_count(set); i++) {
		barrier_var(set);
		id = bl_least_slot(set, bl_locality_place(), i);
		active = id ? bl_active_lookup(*id) : NULL;
		if (!active)
			return false;
		mine = bl_same(*id, (__u32)taken);
		served = others & bl_below(0, active->served) & ~bl_same(*id, dropped);
		active->server = bl_either(mine, taken >> 32, active->server);
		active->served = bl_either(mine, now, served);
	}
	return true;
}

/*
 * Note that lblc or lblcr has chosen @taken, as by bl_least_take, of @set. One that was no server
 * becomes one: with lblc the only one, with lblcr one more. With lblcr another one is taken back
 * when there was no change for long. Inline: the stack has no room for one more function.
 */
static __always_inline void bl_locality_note(__u64 set, __u32 algorithm, __u64 taken)
{
	struct bl_active_entry *active = bl_active_lookup(taken);
	__u64 now = bpf_ktime_get_ns(), served;
	__u32 dropped = ~0U;

	if (!active)
		return;
	served = bl_locality_served(active, taken >> 32);
	if (algorithm == BL_ALGORITHM_LOCALITY) {
		if (served)
			active->served = now;
		else
			bl_locality_change(set, taken, now, 0, dropped);
		return;
	}
	if (served && now - served < bl_locality_idle)
		return;
	if (served) {
		active->served = 0; /* the one to drop is another */
		dropped = bl_locality_find(set, 0, BL_LOCALITY_MOST, 0, 1);
	}
	bl_locality_change(set, taken, now, now, dropped);
}

/* Find the backend of @set that lblc or lblcr chooses, as by bl_least_find. */
static __always_inline __u64 bl_locality_choose(__u64 set, __u32 algorithm, __u32 hash)
{
	__u64 now = bpf_ktime_get_ns(), oldest = 0, found;

	if (algorithm == BL_ALGORITHM_LOCALITY && now > bl_locality_idle)
		oldest = now - bl_locality_idle;
	found = bl_locality_find(set, oldest, BL_LOCALITY_LEAST, ~0ULL, 1);
	if (found >> 32 == ~0U)
		found = bl_least_find(set, algorithm, bl_locality_place(), hash);
	return found;
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
	const struct bl_backend_entry *backend;
	__u64 found = ~0ULL, taken = ~0ULL;

	for (int try = 0; try < BL_LEAST_TRIES && taken == ~0ULL; try++) {
		found = bl_localizes(algorithm) ? bl_locality_choose(set, algorithm, hash)
						: bl_least_find(set, algorithm, hash, hash);
		if (found >> 32 == ~0U)
			return ~0ULL;
		taken = bl_least_take(found, algorithm, kind);
	}
	if (taken != ~0ULL) {
		if (bl_localizes(algorithm))
			bl_locality_note(set, algorithm, taken);
		return taken;
	}
	backend = bl_backend_lookup(found);
	if (!backend || !bl_active_add(found, backend->generation, kind))
		return ~0ULL;
	return (__u64)backend->generation << 32 | (__u32)found;
}
