/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The backend that answers sooner: of two at random, the one of less load, which is its active
 * connections times its round-trip time. TCP has measured that on the connections of the node's
 * sockets that have ended; an exponentially weighted moving average is kept of it.
 */
#pragma once

#include <beeline/hash.h>
#include <beeline/opt/least_conn.h>

static __always_inline __u32 bl_ewma_now(void)
{
	return bpf_ktime_get_coarse_ns() >> BL_EWMA_UNIT;
}

/* How many times what is known since @then has halved, at most 31. */
static __always_inline __u32 bl_ewma_halvings(__u32 then, __u32 now)
{
	__u32 halvings = (now - then) >> BL_EWMA_HALVING;

	return halvings < 31 ? halvings : 31;
}

/* What is noted of a backend with this generation, 0 when that is nothing. */
static __always_inline __u64 bl_ewma_noted(const struct bl_active_entry *active, __u32 generation)
{
	__u64 noted = *(const volatile __u64 *)&active->noted;

	return active->noted_of == ~generation ? noted : 0;
}

/*
 * Note the round-trip time of a connection to a backend that has ended, in an eighth of a
 * microsecond.
 */
__noinline int bl_ewma_note(__u32 id, __u32 generation, __u32 rtt)
{
	struct bl_active_entry *active = bl_active_lookup(id);
	__u32 now = bl_ewma_now();
	__u64 noted;
	__s64 more;

	if (!active)
		return 0;
	if (rtt > BL_EWMA_MOST)
		rtt = BL_EWMA_MOST;
	noted = bl_ewma_noted(active, generation);
	if (noted) {
		more = (__s64)(__u32)noted - rtt;
		more -= more >> BL_EWMA_GAIN;
		rtt += more >> bl_ewma_halvings(noted >> 32, now);
	}
	/* When CPUs are here at the same time, one of the connections does not count. */
	active->noted_of = ~generation;
	active->noted = (__u64)now << 32 | rtt;
	return 0;
}

/* A backend with its round-trip time, 0 when that is not known. */
struct bl_ewma {
	struct bl_least least;
	__u32 rtt;
};

/* Look at the backend of a slot, as of bl_least_look. */
static __always_inline bool bl_ewma_look(__u64 set, __u32 place, __u32 index, struct bl_ewma *ewma)
{
	struct bl_active_entry *active =
		bl_least_look(set, place, index, BL_ALGORITHM_SHORTEST_DELAY, &ewma->least);
	__u64 noted;

	if (!active)
		return false;
	noted = bl_ewma_noted(active, ewma->least.generation);
	ewma->rtt = (__u32)noted >> bl_ewma_halvings(noted >> 32, bl_ewma_now());
	return true;
}

/* The load of a backend that weighs one; without @timed as if all were as far. */
static __always_inline __u64 bl_ewma_load(const struct bl_ewma *ewma, bool timed)
{
	__u64 load = ewma->least.load < BL_EWMA_MOST ? ewma->least.load : BL_EWMA_MOST;

	return timed ? load * ewma->rtt : load;
}

/* Whether @a has less load for its weight than @b. */
static __always_inline bool bl_ewma_less(const struct bl_ewma *a, const struct bl_ewma *b)
{
	bool timed = a->rtt && b->rtt;

	return bl_ewma_load(a, timed) * b->least.weight < bl_ewma_load(b, timed) * a->least.weight;
}

/*
 * Find the one with less load of two backends of @set, which @hash, a number spread over 32 bits,
 * draws: as by bl_least_find.
 */
__noinline __u64 bl_ewma_find(__u64 set, __u32 hash)
{
	__u32 count = bl_set_count(set), second;
	struct bl_ewma best = {}, other = {};
	bool found;

	found = bl_ewma_look(set, hash, 0, &best);
	second = 1 + (bl_hash_final(hash) * (__u64)(count - 1) >> 32);
	if (count > 1 && bl_ewma_look(set, hash, second, &other) &&
	    (!found || bl_ewma_less(&other, &best))) {
		best = other;
		found = true;
	}
	if (!found)
		return ~0ULL;
	return (__u64)best.least.load << 32 | best.least.id;
}
