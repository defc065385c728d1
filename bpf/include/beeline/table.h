/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reading the growable tables. An id that was read from a table leads to an
 * entry that stays what it was until the program ends: the agent reuses ids and
 * slots only after every program that could have seen them has finished.
 */
#pragma once

#include <beeline/maps.h>

/*
 * The entry @id of the growable table @outer whose chunks hold 1 << @shift
 * entries. NULL when the table has not grown that far.
 */
static __always_inline void *bl_table_lookup(void *outer, __u32 id, __u32 shift)
{
	__u32 chunk = id >> shift;
	__u32 index = id & ((1U << shift) - 1);
	void *inner = bpf_map_lookup_elem(outer, &chunk);

	return inner ? bpf_map_lookup_elem(inner, &index) : NULL;
}

/* Whether the growable table @outer has a chunk. Some have none until a Service asks for what they hold. */
static __always_inline bool bl_table_used(void *outer)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(outer, &zero) != NULL;
}

static __always_inline const struct bl_service_entry *bl_service_lookup(__u32 id)
{
	return bl_table_lookup(&bl_service, id, BL_CHUNK_SHIFT);
}

static __always_inline const struct bl_backend_entry *bl_backend_lookup(__u32 id)
{
	return bl_table_lookup(&bl_backend, id, BL_CHUNK_SHIFT);
}

/* Whether two generations of a backend are of one user of its id. */
static __always_inline bool bl_same_user(__u32 generation, __u32 other)
{
	return !((generation ^ other) & BL_GENERATION_USER);
}

/*
 * The backend that @ref remembers, while it serves @service: in a set, or in none any more. What
 * goes to it may stay. NULL otherwise.
 */
static __always_inline const struct bl_backend_entry *bl_backend_serving(struct bl_backend_ref ref,
									 __u32 service)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(ref.id);

	if (!backend || !bl_same_user(backend->generation, ref.generation) ||
	    backend->service != service || !backend->state)
		return NULL;
	return backend;
}

/*
 * The backend that @ref remembers, if it has stayed in a set of @service that
 * @member (BL_BACKEND_CLUSTER or BL_BACKEND_LOCAL) names. NULL otherwise.
 */
static __always_inline const struct bl_backend_entry *bl_backend_recall(struct bl_backend_ref ref,
									__u32 service, __u32 member)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(ref.id);

	if (!backend || backend->generation != ref.generation || backend->service != service ||
	    !(backend->state & member))
		return NULL;
	return backend;
}

static __always_inline const __u32 *bl_slot_lookup(__u32 slot)
{
	const struct bl_slot_line *line;

	line = bl_table_lookup(&bl_slot, slot >> BL_LINE_SHIFT, BL_SLOT_CHUNK_SHIFT);
	return line ? &line->backend[slot & (BL_LINE_SIZE - 1)] : NULL;
}

static __always_inline struct bl_service_stat_entry *bl_service_stat_lookup(__u32 id)
{
	return bl_table_lookup(&bl_service_stat, id, BL_CHUNK_SHIFT);
}

/* A reference to a backend in one word: its id, and its generation in the upper half. */
static __always_inline __u64 bl_ref_word(struct bl_backend_ref ref)
{
	return (__u64)ref.generation << 32 | ref.id;
}

/* What a word of bl_ref_word refers to. */
static __always_inline struct bl_backend_ref bl_ref_of(__u64 word)
{
	return (struct bl_backend_ref){.id = word, .generation = word >> 32};
}

/* The word that refers to no backend. */
#define BL_NO_REF (~0ULL)

static __always_inline __u32 bl_set_first(__u64 set)
{
	return (__u32)set;
}

static __always_inline __u32 bl_set_count(__u64 set)
{
	return (__u32)(set >> BL_SET_COUNT_SHIFT) & ((1U << BL_SET_COUNT_BITS) - 1);
}

static __always_inline enum bl_set_kind bl_set_kind(__u64 set)
{
	return set >> BL_SET_KIND_SHIFT;
}
