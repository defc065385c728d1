/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Outlier detection: how many TCP connections in a row a backend has not answered, or has refused.
 * The agent looks, ejects it, and offers it for one connection when its time is over.
 */
#pragma once

#include <beeline/table.h>

/* Whether any Service asks for it, or has. */
static __always_inline bool bl_outlier_used(void)
{
	return bl_table_used(&bl_outlier);
}

/*
 * Note that a connection to a backend, of whose generation the bits of @known are given, has failed,
 * or that it has been answered.
 */
__noinline int bl_outlier_note(__u32 id, __u32 generation, __u32 known, bool failed)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(id);
	const struct bl_service_entry *service;
	struct bl_outlier_entry *outlier;

	if (!backend || (backend->generation ^ generation) & known)
		return 0;
	service = bl_service_lookup(backend->service);
	outlier = bl_table_lookup(&bl_outlier, id, BL_CHUNK_SHIFT);
	if (!outlier || !service || !service->outliers)
		return 0;
	if (outlier->generation != backend->generation) {
		if (!failed)
			return 0;
		/* What is known is of a former user of the id. */
		outlier->failures = 0;
		outlier->until = 0;
		outlier->times = 0;
		outlier->generation = backend->generation;
	}
	if (failed)
		__sync_fetch_and_add(&outlier->failures, 1);
	else if (outlier->failures)
		outlier->failures = 0;
	return 0;
}

/*
 * The backend @id of @service for one connection, from the set that @member names: by bl_ref_word.
 * BL_NO_REF when it is not on trial, or another connection has been sent to it.
 */
__noinline __u64 bl_outlier_try(__u32 id, __u32 service, __u32 member)
{
	struct bl_outlier_entry *outlier = bl_table_lookup(&bl_outlier, id, BL_CHUNK_SHIFT);
	struct bl_backend_ref ref = {.id = id};

	if (!outlier)
		return BL_NO_REF;
	ref.generation = outlier->generation;
	if (!bl_backend_recall(ref, service, member) ||
	    *(const volatile __u32 *)&outlier->failures != BL_TRIAL_OFFERED ||
	    __sync_val_compare_and_swap(&outlier->failures, BL_TRIAL_OFFERED, BL_TRIAL_TAKEN) !=
		    BL_TRIAL_OFFERED)
		return BL_NO_REF;
	return bl_ref_word(ref);
}
