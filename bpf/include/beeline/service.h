/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a destination to the Service behind it and the backend of a new connection. The
 * steps are the same for sockets and packets; what differs is the client, struct bl_client.
 */
#pragma once

#include <beeline/frontend.h>
#include <beeline/hash.h>
#include <beeline/opt/active_select.h>
#include <beeline/opt/outlier.h>
#include <beeline/table.h>

#define BL_NSEC_PER_SEC 1000000000ULL

/* A backend with its id. backend is NULL when none may serve; see reason. */
struct bl_choice {
	const struct bl_backend_entry *backend;
	struct bl_backend_ref ref;
	/* The set it was chosen from: BL_BACKEND_CLUSTER or BL_BACKEND_LOCAL. */
	__u32 member;
	enum bl_reason reason;
	bool counted; /* the new connection is, in bl_active */
};

/* Whether a connection that is not served for @reason is dropped; all others are refused. */
static __always_inline bool bl_reason_drops(enum bl_reason reason)
{
	return reason == BL_REASON_NO_LOCAL_ENDPOINT || reason == BL_REASON_SOURCE_RANGE ||
	       reason == BL_REASON_UNALLOCATED_ADDRESS || reason == BL_REASON_SOURCE_FRONTEND;
}

/* Count a connection that is not served for @reason, to the Service of @stat, which may be NULL. */
static __always_inline void bl_refuse_count(struct bl_service_stat_entry *stat,
					    enum bl_reason reason)
{
	bl_count(reason);
	if (!stat)
		return;
	stat->refused++;
	if (bl_reason_drops(reason))
		stat->dropped++;
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
 * Pick the backend of @set at @hash, a number spread over 32 bits: the share of the
 * slots that lies before it.
 *
 * The caller has read the set word once, so first slot and count belong together
 * even while the agent replaces the set.
 */
static __always_inline struct bl_choice bl_set_select(__u64 set, __u32 hash)
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
	id = bl_slot_lookup(bl_set_first(set) + (__u32)((__u64)hash * count >> 32));
	if (!id)
		return choice;
	choice.ref.id = *id;
	choice.backend = bl_backend_lookup(choice.ref.id);
	if (choice.backend)
		choice.ref.generation = choice.backend->generation;
	return choice;
}

/*
 * The client of a Service: a socket or a packet. The program that includes this file defines
 * one of them, and the functions that are declared here and below.
 */
struct bl_client;

/* What the client's connections are counted as. */
static __always_inline enum bl_active_kind bl_client_active(void);

/* The connection of @choice is not made: count it no more. */
static __always_inline void bl_choice_drop(const struct bl_choice *choice)
{
	if (unlikely(choice->counted))
		bl_active_drop(choice->ref.id, choice->ref.generation, bl_client_active());
}

/* Pick a backend of @set by the algorithm of @service; @hash as of bl_set_select. */
static __always_inline struct bl_choice bl_service_select(const struct bl_service_entry *service,
							  __u64 set, __u32 hash)
{
	struct bl_choice choice = {.reason = BL_REASON_BROKEN_TABLE};
	__u64 counted;

	if (unlikely(bl_algorithm_counts(service->algorithm)) &&
	    bl_set_kind(set) == BL_SET_BACKENDS) {
		counted = bl_active_select(set, service->algorithm, bl_client_active(), hash);
		choice.backend = bl_backend_lookup(counted);
		if (choice.backend) {
			choice.counted = true;
			choice.ref = bl_ref_of(counted);
			return choice;
		}
	}
	return bl_set_select(set, hash);
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
 * Recall the backend that @known, which may be NULL, remembers of a client of @service: by
 * bl_ref_word. BL_NO_REF when the affinity has ended, which lasts @timeout seconds, or the backend
 * may get no connection from the set that @member names.
 */
static __always_inline __u64 bl_affinity_recall(struct bl_affinity_entry *known, __u32 timeout,
						__u32 service, __u32 member)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	/* Signed: another CPU may have noted a tick that this one has yet to see. */
	if (!known || (__s64)(now - known->last_used) >= (__s64)(timeout * BL_NSEC_PER_SEC))
		return BL_NO_REF;
	if (!bl_affinity_lasts(bl_backend_recall(known->backend, service, member)))
		return BL_NO_REF;
	known->last_used = now;
	return bl_ref_word(known->backend);
}

/*
 * Remember in @map that the client of @key got @backend, by bl_ref_word; the rest as of
 * bl_affinity_recall. Returns the backend that the client gets: of two first connections at the
 * same time, the loser of the insertion takes the winner's.
 */
static __always_inline __u64 bl_affinity_remember(void *map, const void *key, __u32 timeout,
						  __u32 service, __u32 member, __u64 backend)
{
	struct bl_affinity_entry fresh = {
		.backend = bl_ref_of(backend),
		.last_used = bpf_ktime_get_coarse_ns(),
	};
	struct bl_affinity_entry *known;
	__u64 recalled;

	if (!bpf_map_update_elem(map, key, &fresh, BPF_NOEXIST))
		return backend;
	known = bpf_map_lookup_elem(map, key);
	if (!known) {
		bl_count(BL_REASON_AFFINITY_NOT_STORED);
		return backend;
	}
	recalled = bl_affinity_recall(known, timeout, service, member);
	if (recalled != BL_NO_REF)
		return recalled;
	*known = fresh;
	return backend;
}

/* Whether NodePorts answer the client at the address of @dst. */
static __always_inline bool bl_client_meets_node(const struct bl_client *client,
						 const struct bl_dst *dst);

/*
 * Whether the client is about to send to @dst. One that does not may ask about a
 * destination that must not be reached.
 */
static __always_inline bool bl_client_sends(const struct bl_client *client,
					    const struct bl_dst *dst);

/*
 * Whether loadBalancerSourceRanges of @service let the client in, which is about to reach @dst; or
 * it is of this node, and has the load-balancer IP itself.
 */
static __always_inline bool bl_client_allowed(const struct bl_client *client,
					      const struct bl_dst *dst, __u32 service);

/* BL_FRONTEND_INTERNAL_LOCAL or BL_FRONTEND_EXTERNAL_LOCAL: which policy the client is under. */
static __always_inline enum bl_frontend_flag bl_client_policy(const struct bl_client *client);

/* A hash of the client's address. */
static __always_inline __u32 bl_client_hash(const struct bl_client *client);

/*
 * Hash the addresses and ports of a connection, with @affinity the client's address alone.
 * False when the client has no source port yet.
 */
static __always_inline bool bl_client_hash_flow(const struct bl_client *client, bool affinity,
						__u32 *hash);

/* A Service as a client reaches it. stat is NULL when the destination is no Service. */
struct bl_target {
	struct bl_frontend_entry frontend;
	const struct bl_service_entry *service;
	struct bl_service_stat_entry *stat;
};

/* The id of the Service of @target, ~0 when it has none. */
static __always_inline __u32 bl_target_service(const struct bl_target *target)
{
	return target->stat ? target->frontend.service : ~0U;
}

/* Recall the client's backend, see bl_affinity_recall. */
static __always_inline __u64 bl_client_recall(const struct bl_client *client,
					      const struct bl_target *target, __u32 member);

/* Remember the client's backend, see bl_affinity_remember. */
static __always_inline __u64 bl_client_remember(const struct bl_client *client,
						const struct bl_target *target, __u32 member,
						__u64 backend);

/* The frontend behind @dst; kind BL_FRONTEND_NONE when @dst is none for this client. */
static __always_inline struct bl_frontend_entry bl_frontend_find(const struct bl_client *client,
								 const struct bl_dst *dst)
{
	struct bl_frontend_entry frontend = bl_frontend_get(dst->high, dst->low, dst->tail);

	/* The any-address is a key of NodePorts, and to some clients an address. */
	if (frontend.kind != BL_FRONTEND_NONE && frontend.kind != BL_FRONTEND_NODE_PORT)
		return frontend;
	frontend = bl_node_port_get(dst);
	if (frontend.kind != BL_FRONTEND_NONE && !bl_client_meets_node(client, dst))
		frontend.kind = BL_FRONTEND_NONE;
	return frontend;
}

/*
 * Find the Service behind @dst. Returns why @client must not reach @dst, or
 * BL_REASON_COUNT when there is nothing against it.
 */
static __always_inline enum bl_reason
bl_service_find(const struct bl_client *client, const struct bl_dst *dst, struct bl_target *target)
{
	target->frontend = bl_frontend_find(client, dst);
	target->service = NULL;
	target->stat = NULL;
	if (target->frontend.kind == BL_FRONTEND_NONE)
		return bl_client_sends(client, dst) ? bl_undeclared(dst) : BL_REASON_COUNT;
	target->service = bl_service_lookup(target->frontend.service);
	if (unlikely(!target->service))
		return BL_REASON_BROKEN_TABLE;
	target->stat = bl_service_stat_lookup(target->frontend.service);
	if (unlikely(!target->stat))
		return BL_REASON_BROKEN_TABLE;
	if (unlikely(target->frontend.flags & BL_FRONTEND_SOURCE_RANGES) &&
	    !bl_client_allowed(client, dst, target->frontend.service))
		return BL_REASON_SOURCE_RANGE;
	return BL_REASON_COUNT;
}

/* The number by which a Service picks a slot of @set for a new connection to @dst. */
static __always_inline __u32 bl_service_hash(const struct bl_client *client,
					     const struct bl_dst *dst,
					     const struct bl_target *target, __u64 set)
{
	union bl_addr addr BL_ALIGNED;
	__u32 hash;

	switch (target->service->algorithm) {
	case BL_ALGORITHM_ROUND_ROBIN:
	case BL_ALGORITHM_WEIGHTED_ROUND_ROBIN:
		return bl_turn(target->stat, target->frontend.service, set);
	case BL_ALGORITHM_SOURCE_HASH:
		return bl_client_hash(client);
	case BL_ALGORITHM_DESTINATION_HASH:
		bl_dst_get_addr(dst, &addr);
		return bl_hash_final(bl_hash_addr(0, &addr));
	case BL_ALGORITHM_MAGLEV:
		if (bl_client_hash_flow(client, target->service->affinity, &hash))
			return hash;
	}
	return bl_random(target->stat, target->frontend.service);
}

/* Make @choice that of a backend that a client had before, by bl_ref_word. */
static __always_inline void bl_choice_recall(struct bl_choice *choice, __u64 backend,
					     __u32 algorithm)
{
	choice->ref = bl_ref_of(backend);
	choice->reason = BL_REASON_BROKEN_TABLE;
	choice->backend = bl_backend_lookup(choice->ref.id);
	choice->counted = choice->backend && bl_algorithm_counts(algorithm) &&
			  bl_active_add(choice->ref.id, choice->ref.generation, bl_client_active());
}

/*
 * Choose the backend of a client that has had none, from @set, which @member names: the one on trial,
 * else one by the Service's algorithm.
 */
static __always_inline struct bl_choice bl_service_pick(const struct bl_client *client,
							const struct bl_dst *dst,
							const struct bl_target *target, __u64 set,
							__u32 member)
{
	__u32 trial = *(const volatile __u32 *)&target->service->trial;
	struct bl_choice choice = {};
	__u64 tried;

	if (unlikely(trial)) {
		tried = bl_outlier_try(trial - 1, target->frontend.service, member);
		if (tried != BL_NO_REF) {
			bl_choice_recall(&choice, tried, target->service->algorithm);
			return choice;
		}
	}
	return bl_service_select(target->service, set, bl_service_hash(client, dst, target, set));
}

/* Choose the backend of a new connection to @dst, whose Service is @target, and count it. */
static __always_inline struct bl_choice bl_service_balance(const struct bl_client *client,
							   const struct bl_dst *dst,
							   const struct bl_target *target)
{
	__u64 set, before = BL_NO_REF, chosen;
	struct bl_choice choice;
	__u32 member;

	set = bl_service_set(target->service, target->frontend.flags & bl_client_policy(client),
			     &member);
	if (unlikely(target->service->affinity))
		before = bl_client_recall(client, target, member);
	if (before == BL_NO_REF) {
		choice = bl_service_pick(client, dst, target, set, member);
		if (unlikely(target->service->affinity) && choice.backend) {
			chosen = bl_ref_word(choice.ref);
			before = bl_client_remember(client, target, member, chosen);
			if (before == chosen)
				before = BL_NO_REF;
			else
				bl_choice_drop(&choice);
		}
	}
	if (unlikely(before != BL_NO_REF))
		bl_choice_recall(&choice, before, target->service->algorithm);
	choice.member = member;
	if (choice.backend)
		target->stat->connections++;
	return choice;
}
