/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packet flows: both directions of each connection that a packet of a client
 * outside of this node's sockets began.
 */
#pragma once

#include <beeline/packet.h>
#include <beeline/select.h>

/* Seconds of CLOCK_MONOTONIC_COARSE, as in bl_flow_forward. */
static __always_inline __u32 bl_flow_now(void)
{
	return bpf_ktime_get_coarse_ns() / BL_NSEC_PER_SEC;
}

static __always_inline const struct bl_device_entry *bl_device_lookup(__u32 id)
{
	return bpf_map_lookup_elem(&bl_device, &id);
}

/* The address that SNAT gives packets that leave by @device. Zero when it has none. */
static __always_inline union bl_addr bl_device_addr(const struct bl_device_entry *device, bool ipv4)
{
	union bl_addr addr = {};

	if (!ipv4)
		return device->addr6;
	if (device->addr4)
		bl_addr_set_ipv4(&addr, device->addr4);
	return addr;
}

/*
 * The source that SNAT gives the packets of a flow, by its forward entry. False when
 * its device was never there.
 */
static __always_inline bool bl_flow_snat_source(const struct bl_flow_entry *forward, bool ipv4,
						union bl_addr *source)
{
	const struct bl_device_entry *device = bl_device_lookup(forward->device);

	if (!device)
		return false;
	*source = bl_device_addr(device, ipv4);
	return true;
}

/* The entry of packets like @key. NULL when they are of no flow. */
static __always_inline struct bl_flow_entry *bl_flow_lookup(const struct bl_flow_key *key)
{
	return bpf_map_lookup_elem(&bl_flow, key);
}

/*
 * Add an entry. False when there is one of this key, or no memory. The key must be on the
 * stack: Linux 6.1 takes no other.
 */
static __always_inline bool bl_flow_insert(const struct bl_flow_key *key,
					   const struct bl_flow_entry *entry)
{
	return !bpf_map_update_elem(&bl_flow, key, entry, BPF_NOEXIST);
}

/* Add an entry, in place of one that is there. False when there is no memory. */
static __always_inline bool bl_flow_store(const struct bl_flow_key *key,
					  const struct bl_flow_entry *entry)
{
	return !bpf_map_update_elem(&bl_flow, key, entry, BPF_ANY);
}

static __always_inline void bl_flow_delete(const struct bl_flow_key *key)
{
	bpf_map_delete_elem(&bl_flow, key);
}

static __always_inline enum bl_flow_state bl_flow_get_state(const struct bl_flow_entry *flow)
{
	return flow->bits & BL_FLOW_STATE;
}

static __always_inline void bl_flow_set_state(struct bl_flow_entry *flow, enum bl_flow_state state)
{
	flow->bits = (flow->bits & ~BL_FLOW_STATE) | state;
}

/*
 * Note in the forward entry what a packet tells of the connection. Two packets at
 * once may lose one of two notes; the next packet makes it again.
 */
static __always_inline void bl_flow_track(struct bl_flow_entry *forward, bool from_client,
					  __u8 proto, __u8 tcp_flags)
{
	enum bl_flow_state state = bl_flow_get_state(forward);

	if (proto == IPPROTO_UDP) {
		if (!from_client && state == BL_FLOW_NEW)
			bl_flow_set_state(forward, BL_FLOW_ESTABLISHED);
		return;
	}
	if (tcp_flags & BL_TCP_RST) {
		bl_flow_set_state(forward, BL_FLOW_CLOSED);
		return;
	}
	if (tcp_flags & BL_TCP_FIN) {
		enum bl_flow_state mine =
			from_client ? BL_FLOW_CLIENT_CLOSING : BL_FLOW_BACKEND_CLOSING;

		if (state < BL_FLOW_CLIENT_CLOSING)
			bl_flow_set_state(forward, mine);
		else if (state != mine)
			bl_flow_set_state(forward, BL_FLOW_CLOSED);
		return;
	}
	if (state == BL_FLOW_NEW && !from_client)
		bl_flow_set_state(forward, BL_FLOW_SYN_RECEIVED);
	else if (state == BL_FLOW_SYN_RECEIVED && from_client && !(tcp_flags & BL_TCP_SYN))
		bl_flow_set_state(forward, BL_FLOW_ESTABLISHED);
}

/* The reply entry's key: the backend's packets as they arrive. */
static __always_inline void bl_flow_reply_key(const struct bl_flow_key *forward_key,
					      const struct bl_flow_entry *forward,
					      const union bl_addr *source, struct bl_flow_key *key)
{
	key->src = forward->addr;
	key->src_port = forward->port;
	key->dst = *source;
	key->dst_port = forward->other_port;
	key->proto = forward_key->proto;
	__builtin_memset(key->pad, 0, sizeof(key->pad));
}

/* The forward entry's key: the client's packets as they arrive. */
static __always_inline void bl_flow_forward_key(const struct bl_flow_key *reply_key,
						const struct bl_flow_entry *reply,
						struct bl_flow_key *key)
{
	key->src = reply->client;
	key->src_port = reply->other_port;
	key->dst = reply->addr;
	key->dst_port = reply->port;
	key->proto = reply_key->proto;
	__builtin_memset(key->pad, 0, sizeof(key->pad));
}

/* Fill the reply entry that belongs to a forward entry. */
static __always_inline void bl_flow_make_reply(const struct bl_flow_key *forward_key,
					       const struct bl_flow_entry *forward,
					       __u8 client_device, __u32 now,
					       struct bl_flow_entry *reply)
{
	reply->addr = forward_key->dst;
	reply->port = forward_key->dst_port;
	reply->client = forward_key->src;
	reply->other_port = forward_key->src_port;
	reply->touched = now - 1; /* the first reply is noted */
	reply->device = forward->bits & BL_FLOW_POD ? 0 : client_device;
	reply->bits = BL_FLOW_IS_REPLY | (forward->bits & (BL_FLOW_SNAT | BL_FLOW_POD));
}
