/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A packet as the client of a Service.
 */
#pragma once

#include <beeline/flow_table.h>
#include <beeline/service.h>

/* Packets to backends on this node get a source address of the node, too. */
volatile const bool bl_masquerade_all;

enum bl_served_limits {
	BL_SERVED_SHIFT = 5,
	BL_SERVED_ENTRIES = 1 << BL_SERVED_SHIFT,
};

struct bl_served_entry {
	union bl_addr addr;
	__u32 second; /* as bl_flow_now() */
	__u8 pad[4];
} BL_ALIGNED;

/* Addresses that NodePorts are served at, by a hash. Each load of the programs has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BL_SERVED_ENTRIES);
	__type(key, __u32);
	__type(value, struct bl_served_entry);
} bl_served SEC(".maps");

struct bl_client {
	const struct bl_packet *packet;
	__u32 now; /* s, as bl_flow_now() */
	bool internal; /* it is inside of the cluster */
};

static __always_inline enum bl_active_kind bl_client_active(void)
{
	return BL_ACTIVE_FLOWS;
}

/* The destination of a packet. */
static __always_inline struct bl_dst bl_packet_dst(const struct bl_packet *packet)
{
	struct bl_dst dst = {
		.high = ((const __u64 *)&packet->key.dst)[0],
		.low = ((const __u64 *)&packet->key.dst)[1],
		.port = packet->key.dst_port,
		.proto = packet->key.proto,
		.ipv4 = packet->ipv4,
	};

	return dst;
}

/*
 * Whether the traffic policy for clients inside of the cluster holds for a packet that came
 * in by the device @id, whatever its source says. False, too, when both policies of the
 * frontend are the same.
 */
static __always_inline bool bl_packet_internal(struct bl_frontend_entry frontend, __u32 id)
{
	const struct bl_device_entry *device;

	if (!bl_masquerade_all && !(frontend.flags & BL_FRONTEND_INTERNAL_LOCAL) ==
					  !(frontend.flags & BL_FRONTEND_EXTERNAL_LOCAL))
		return false;
	device = bl_device_lookup(id);
	return device && device->flags & BL_DEVICE_INTERNAL;
}

/* What is found is kept for the rest of the second. */
static __always_inline bool bl_client_meets_node(const struct bl_client *client,
						 const struct bl_dst *dst)
{
	__u32 at = (dst->high ^ dst->low) * 0x9e3779b97f4a7c15ULL >> (64 - BL_SERVED_SHIFT);
	struct bl_served_entry *served = bpf_map_lookup_elem(&bl_served, &at);

	if (!served)
		return false;
	if (served->second == client->now && bl_dst_has_addr(dst, &served->addr))
		return true;
	if (!bl_node_addr_serves(dst, 0))
		return false;
	bl_dst_get_addr(dst, &served->addr);
	served->second = client->now;
	return true;
}

static __always_inline bool bl_client_sends(const struct bl_client *client,
					    const struct bl_dst *dst)
{
	(void)client;
	(void)dst;
	return true;
}

static __always_inline bool bl_client_allowed(const struct bl_client *client,
					      const struct bl_dst *dst, __u32 service)
{
	const struct bl_packet *packet = client->packet;

	return bl_source_in_range(service, &packet->key.src) ||
	       (packet->leaves && bl_source_is_balancer(service, dst->tail, &packet->key.src));
}

static __always_inline enum bl_frontend_flag bl_client_policy(const struct bl_client *client)
{
	return client->internal ? BL_FRONTEND_INTERNAL_LOCAL : BL_FRONTEND_EXTERNAL_LOCAL;
}

static __always_inline __u32 bl_client_hash(const struct bl_client *client)
{
	return bl_hash_final(bl_hash_addr(0, &client->packet->key.src));
}

/* With affinity, nodes that do not know of the client agree on its backend. */
static __always_inline bool bl_client_hash_flow(const struct bl_client *client, bool affinity,
						__u32 *hash)
{
	const struct bl_flow_key *key = &client->packet->key;

	if (affinity) {
		*hash = bl_client_hash(client);
		return true;
	}
	*hash = bl_hash_final(bl_hash_mix(bl_hash_addr(bl_hash_addr(0, &key->src), &key->dst),
					  (__u64)key->proto << 32 |
						  (__u32)bpf_ntohs(key->src_port) << 16 |
						  bpf_ntohs(key->dst_port)));
	return true;
}

/*
 * See bl_affinity_recall. A client that has yet to establish a flow is remembered apart from those
 * that have. Not inline, as the next one: affinity is rare, and verified once.
 */
__noinline __u64 bl_packet_recall(const struct bl_client_key *client, __u32 timeout, __u32 member)
{
	struct bl_client_key key;
	__u64 backend;

	if (!client)
		return BL_NO_REF;
	key = *client;
	backend = bl_affinity_recall(bpf_map_lookup_elem(&bl_client, &key), timeout, key.service,
				     member);
	if (backend != BL_NO_REF)
		return backend;
	return bl_affinity_recall(bpf_map_lookup_elem(&bl_new_client, &key), timeout, key.service,
				  member);
}

/* See bl_affinity_remember. */
__noinline __u64 bl_packet_remember(const struct bl_client_key *client, __u32 timeout, __u32 member,
				    __u64 backend)
{
	struct bl_client_key key;

	if (!client)
		return backend;
	key = *client;
	return bl_affinity_remember(&bl_new_client, &key, timeout, key.service, member, backend);
}

static __always_inline struct bl_client_key bl_client_key(const struct bl_client *client,
							  const struct bl_target *target)
{
	return (struct bl_client_key){
		.client = client->packet->key.src,
		.service = target->frontend.service,
	};
}

static __always_inline __u64 bl_client_recall(const struct bl_client *client,
					      const struct bl_target *target, __u32 member)
{
	struct bl_client_key key = bl_client_key(client, target);

	return bl_packet_recall(&key, target->service->affinity, member);
}

static __always_inline __u64 bl_client_remember(const struct bl_client *client,
						const struct bl_target *target, __u32 member,
						__u64 backend)
{
	struct bl_client_key key = bl_client_key(client, target);

	return bl_packet_remember(&key, target->service->affinity, member, backend);
}
