/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What would happen to a new connection: the command asks by a test run, and the programs' own
 * steps answer. Never attached.
 *
 * A step that chooses also remembers. So the command loads these programs over copies of the maps
 * that steps write to, and over the pinned ones for all that they only read. What a choice depends
 * on and writes as well, it finds in the copy: the functions below put it there.
 */
#pragma once

#include <beeline/service.h>

/* The question, and the answer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bl_explain_entry);
} bl_explain SEC(".maps");

/* The pinned bl_service_stat; that name is the copy. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, BL_CHUNK(struct bl_service_stat_entry, BL_CHUNK_SIZE,
				 BPF_MAP_TYPE_PERCPU_ARRAY, 0));
} bl_known_stat SEC(".maps");

/* The destination that is asked about. */
static __always_inline struct bl_dst bl_explain_dst(const struct bl_explain_query *query)
{
	struct bl_dst dst = {
		.high = ((const __u64 *)&query->dst)[0],
		.low = ((const __u64 *)&query->dst)[1],
		.port = query->dst_port,
		.proto = query->proto,
		.ipv4 = query->ipv4,
	};

	return dst;
}

/* Count on from what the Service has counted: turns go by that. */
static __always_inline void bl_explain_know_stat(__u32 service)
{
	const struct bl_service_stat_entry *known =
		bl_table_lookup(&bl_known_stat, service, BL_CHUNK_SHIFT);
	struct bl_service_stat_entry *stat = bl_service_stat_lookup(service);

	if (known && stat)
		*stat = *known;
}

/*
 * Let @map, a copy, have what @known, which is pinned, remembers of the client of @key. True when
 * that is what the client gets from the set that explain->member names.
 */
static __always_inline bool bl_explain_know_client(struct bl_explain_entry *explain, void *known,
						   void *map, const void *key,
						   const struct bl_target *target)
{
	const struct bl_affinity_entry *entry = bpf_map_lookup_elem(known, key);
	struct bl_affinity_entry copy;

	if (!target->service->affinity || !entry)
		return false;
	copy = *entry;
	bpf_map_update_elem(map, key, &copy, BPF_ANY);
	explain->affinity = copy;
	explain->steps |= BL_EXPLAIN_AFFINITY;
	if (bl_affinity_recall(&copy, target->service->affinity, target->frontend.service,
			       explain->member) == BL_NO_REF)
		return false;
	explain->steps |= BL_EXPLAIN_RECALLED;
	return true;
}

/* Note which set the client is asked to take its backend from. */
static __always_inline void bl_explain_set(struct bl_explain_entry *explain,
					   const struct bl_client *client,
					   const struct bl_target *target)
{
	explain->set =
		bl_service_set(target->service, target->frontend.flags & bl_client_policy(client),
			       &explain->member);
	explain->steps |= BL_EXPLAIN_SET;
	if (bl_client_policy(client) == BL_FRONTEND_INTERNAL_LOCAL)
		explain->steps |= BL_EXPLAIN_INTERNAL;
}
