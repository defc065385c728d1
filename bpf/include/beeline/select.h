/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a Service to the backend of a new connection.
 */
#pragma once

#include <beeline/hash.h>
#include <beeline/table.h>

#define BL_NSEC_PER_SEC 1000000000ULL

/* A backend with its id. backend is NULL when none may serve; see reason. */
struct bl_choice {
	const struct bl_backend_entry *backend;
	struct bl_backend_ref ref;
	/* The set it was chosen from: BL_BACKEND_CLUSTER or BL_BACKEND_LOCAL. */
	__u32 member;
	enum bl_reason reason;
};

/*
 * The backend that @ref remembers, if it is still in a set of @service that
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

/* Whether what is not served for @reason gets no answer; all else is told so. */
static __always_inline bool bl_reason_drops(enum bl_reason reason)
{
	return reason == BL_REASON_NO_LOCAL_ENDPOINT || reason == BL_REASON_SOURCE_RANGE ||
	       reason == BL_REASON_UNALLOCATED_ADDRESS;
}

/*
 * The set of @service for a client, read once; @member says which it is, as in a
 * backend's state.
 */
static __always_inline __u64 bl_service_set(const struct bl_service_entry *service, bool local,
					    __u32 *member)
{
	*member = local ? BL_BACKEND_LOCAL : BL_BACKEND_CLUSTER;
	return local ? *(const volatile __u64 *)&service->local
		     : *(const volatile __u64 *)&service->cluster;
}

/*
 * Pick the backend of @set at @spread, a number spread over 32 bits: the share of the
 * slots that lies before it.
 *
 * The caller has read the set word once, so first slot and count belong together
 * even while the agent replaces the set.
 */
static __always_inline struct bl_choice bl_set_select(__u64 set, __u32 spread)
{
	struct bl_choice choice = {.reason = BL_REASON_NO_ENDPOINT};
	__u32 count = bl_set_count(set);
	const __u32 *id;

	switch (bl_set_kind(set)) {
	case BL_SET_REJECT:
		return choice;
	case BL_SET_DROP:
		choice.reason = BL_REASON_NO_LOCAL_ENDPOINT;
		return choice;
	case BL_SET_BACKENDS:
		break;
	}
	choice.reason = BL_REASON_BROKEN_TABLE;
	id = bl_slot_lookup(bl_set_first(set) + (__u32)((__u64)spread * count >> 32));
	if (!id)
		return choice;
	choice.ref.id = *id;
	choice.backend = bl_backend_lookup(choice.ref.id);
	if (choice.backend)
		choice.ref.generation = choice.backend->generation;
	return choice;
}

/*
 * Where the choices of a Service start: elsewhere on each node and CPU, so that rare
 * connections from many nodes do not meet at one backend.
 */
static __always_inline __u32 bl_start(__u32 service)
{
	return (bl_seed ^ (bpf_get_smp_processor_id() << 20 | service)) * 0x85ebca6bU;
}

/*
 * A number spread over 32 bits for the next choice of a Service: steps of the
 * golden ratio, which visit all parts of a set evenly in any order of set sizes.
 */
static __always_inline __u32 bl_random(const struct bl_service_stat_entry *stat, __u32 service)
{
	return bl_start(service) + (__u32)stat->connections * 0x9e3779b9U;
}

/* Likewise for one slot of @set after the other, on each CPU for itself. */
static __always_inline __u32 bl_turn(const struct bl_service_stat_entry *stat, __u32 service,
				     __u64 set)
{
	__u64 turn = (bl_start(service) >> 8) + stat->connections;
	__u64 count = bl_set_count(set);

	if (!count)
		return 0;
	/* The first number that bl_set_select takes for the slot. */
	return ((turn % count << 32) + count - 1) / count;
}

/* Whether the backend that a client had may get a new connection of it. */
static __always_inline bool bl_affinity_lasts(const struct bl_backend_entry *backend)
{
	return backend && !(backend->state & BL_BACKEND_NO_NEW);
}

/*
 * Choose the backend that @known, which may be NULL, remembers of a client. False when the
 * Service's affinity has ended, or the backend may get no connection from the set that
 * @member names.
 */
static __always_inline bool bl_affinity_recall(struct bl_affinity_entry *known,
					       const struct bl_service_entry *service, __u32 id,
					       __u32 member, __u64 now, struct bl_choice *choice)
{
	const struct bl_backend_entry *backend;

	if (!known || now - known->last_used >= service->affinity * BL_NSEC_PER_SEC)
		return false;
	backend = bl_backend_recall(known->backend, id, member);
	if (!bl_affinity_lasts(backend))
		return false;
	known->last_used = now;
	choice->backend = backend;
	choice->ref = known->backend;
	choice->reason = BL_REASON_COUNT;
	return true;
}

/*
 * Pick a backend of @set for the client of @key, the same as before while the Service's
 * affinity lasts and the backend is in the set that @member names.
 *
 * Two first connections of a client at the same time agree on one backend: the
 * loser of the insertion takes the winner's.
 */
static __always_inline struct bl_choice bl_affinity_select(void *map,
							   const struct bl_service_entry *service,
							   const void *key, __u32 id, __u64 set,
							   __u32 member, __u32 spread)
{
	__u64 now = bpf_ktime_get_coarse_ns();
	struct bl_affinity_entry *known, fresh = {.last_used = now};
	const struct bl_backend_entry *backend;
	struct bl_choice choice;

	known = bpf_map_lookup_elem(map, key);
	if (bl_affinity_recall(known, service, id, member, now, &choice))
		return choice;
	choice = bl_set_select(set, spread);
	if (!choice.backend)
		return choice;
	if (known) {
		known->backend = choice.ref;
		known->last_used = now;
		return choice;
	}
	fresh.backend = choice.ref;
	if (!bpf_map_update_elem(map, key, &fresh, BPF_NOEXIST))
		return choice;
	known = bpf_map_lookup_elem(map, key);
	if (!known) {
		bl_count(BL_REASON_AFFINITY_NOT_STORED);
		return choice;
	}
	backend = bl_backend_recall(known->backend, id, member);
	if (bl_affinity_lasts(backend)) {
		choice.backend = backend;
		choice.ref = known->backend;
	}
	return choice;
}
