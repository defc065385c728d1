/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The active connections of backends, counted for Services that choose by them.
 */
#pragma once

#include <beeline/table.h>

enum bl_active_limits {
	/* How often a count is tried to be changed: a try fails when another CPU has changed
	 * it meanwhile. */
	BL_ACTIVE_TRIES = 1 << 16,
};

/* Whether connections of a Service with this enum bl_algorithm are counted. */
static __always_inline bool bl_algorithm_counts(__u32 algorithm)
{
	return algorithm >= BL_ALGORITHM_LEAST_CONN && algorithm <= BL_ALGORITHM_COUNTED_RANDOM;
}

/* Whether connections of any Service are counted, or have been. */
static __always_inline bool bl_active_used(void)
{
	return bl_table_used(&bl_active);
}

static __always_inline struct bl_active_entry *bl_active_lookup(__u32 id)
{
	return bl_table_lookup(&bl_active, id, BL_CHUNK_SHIFT);
}

static __always_inline __u64 bl_active_word(const struct bl_active_entry *active,
					    enum bl_active_kind kind)
{
	return *(const volatile __u64 *)&active->word[kind & (BL_ACTIVE_KINDS - 1)];
}

/* Replace a word. False when another CPU has changed what was @seen there. */
static __always_inline bool bl_active_replace(struct bl_active_entry *active,
					      enum bl_active_kind kind, __u64 seen, __u64 next)
{
	return __sync_val_compare_and_swap(&active->word[kind & (BL_ACTIVE_KINDS - 1)], seen,
					   next) == seen;
}

/* How many connections a word counts of the backend with this generation, or with a former one. */
static __always_inline __u32 bl_active_count(__u64 word, __u32 generation)
{
	return bl_same_user(word >> 32, generation) ? (__u32)word : 0;
}

/* When the backend became a server, or was chosen last by lblc; 0: it is none. */
static __always_inline __u64 bl_active_served(const struct bl_active_entry *active,
					      __u32 generation)
{
	__u64 served = *(const volatile __u64 *)&active->noted;

	return active->noted_of == generation ? served : 0;
}

/*
 * Count one more connection where @seen was counted before. False when another CPU has changed
 * that meanwhile.
 */
static __always_inline bool bl_active_take(struct bl_active_entry *active, enum bl_active_kind kind,
					   __u64 seen, __u32 generation)
{
	__u64 next = (__u64)generation << 32 | (bl_active_count(seen, generation) + 1);

	/* Before the count: who compares both takes no connection for one that has ended. */
	if (kind == BL_ACTIVE_FLOWS)
		__sync_fetch_and_add(&active->begun, 1);
	return bl_active_replace(active, kind, seen, next);
}

/* A change of a count, tried until no other CPU is at it. */
struct bl_active_change {
	__u32 id; /* of the backend */
	__u32 generation;
	enum bl_active_kind kind;
	bool add; /* one connection more, else one less */
	bool done;
};

/* Callback of bpf_loop. Returns 1 to stop. */
static long bl_active_try(__u32 index, void *arg)
{
	struct bl_active_change *change = arg;
	struct bl_active_entry *active = bl_active_lookup(change->id);
	__u64 seen;

	(void)index;
	if (!active)
		return 1;
	seen = bl_active_word(active, change->kind);
	if (change->add)
		change->done = bl_active_take(active, change->kind, seen, change->generation);
	else if (!bl_active_count(seen, change->generation))
		return 1;
	else
		change->done = bl_active_replace(active, change->kind, seen, seen - 1);
	return change->done;
}

/* Count one more connection of a backend. False when it cannot be counted. */
__noinline bool bl_active_add(__u32 id, __u32 generation, enum bl_active_kind kind)
{
	struct bl_active_change change = {
		.id = id, .generation = generation, .kind = kind, .add = true};

	bpf_loop(BL_ACTIVE_TRIES, bl_active_try, &change, 0);
	return change.done;
}

/*
 * Count one connection less of a backend. Not below zero, for what has ended may be one that was
 * never counted.
 */
__noinline bool bl_active_drop(__u32 id, __u32 generation, enum bl_active_kind kind)
{
	struct bl_active_change change = {.id = id, .generation = generation, .kind = kind};

	bpf_loop(BL_ACTIVE_TRIES, bl_active_try, &change, 0);
	return change.done;
}
