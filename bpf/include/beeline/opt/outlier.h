/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Outlier detection: how many TCP connections in a row a backend has not answered, or has refused.
 * The agent looks, and ejects it.
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
