/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packet flows: both directions of each connection that a packet of a client
 * outside of this node's sockets began.
 */
#pragma once

#include <beeline/packet.h>
#include <beeline/select.h>

/* The bits that both entries of a flow have. */
#define BL_FLOW_OF_BOTH (BL_FLOW_SNAT | BL_FLOW_POD | BL_FLOW_OVERFLOW | BL_FLOW_TUNNEL)

/* How many half-open flows bl_flow may hold. */
volatile const __u32 bl_half_open_max = ~0U >> 1;

/* What bl_flow_now() returned last, below the lower half of the jiffies in which it did. */
static volatile __u64 bl_clock;

/*
 * Seconds of CLOCK_MONOTONIC_COARSE, as in bl_flow_forward. That clock goes on with the
 * jiffies, which are a word to read; to ask for it would be a sixth of a packet's cost.
 */
static __always_inline __u32 bl_flow_now(void)
{
	__u32 jiffies = bpf_jiffies64();
	__u64 clock = bl_clock;

	if ((__u32)clock && clock >> 32 == jiffies)
		return clock;
	clock = bpf_ktime_get_coarse_ns() / BL_NSEC_PER_SEC;
	bl_clock = (__u64)jiffies << 32 | (__u32)clock;
	return clock;
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

static __always_inline struct bl_half_open_entry *bl_half_open_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bl_half_open, &zero);
}

/* Whether bl_overflow may hold something. */
static __always_inline bool bl_overflow_used(void)
{
	const volatile struct bl_half_open_entry *half_open = bl_half_open_lookup();

	return half_open && half_open->overflow;
}

/* To be called before bl_overflow is added to. */
static __always_inline void bl_overflow_use(void)
{
	struct bl_half_open_entry *half_open = bl_half_open_lookup();
	__u32 now = bl_flow_now();

	if (half_open && half_open->overflow != now)
		half_open->overflow = now;
}

/* Take a place in bl_flow for a half-open flow. False when none is left. */
static __always_inline bool bl_half_open_take(void)
{
	struct bl_half_open_entry *half_open = bl_half_open_lookup();

	if (!half_open || half_open->count >= bl_half_open_max)
		return false;
	__sync_fetch_and_add(&half_open->count, 1);
	return true;
}

/* Give back the place of a flow that is established, or gone; in bl_overflow it has none. */
static __always_inline void bl_half_open_give(__u8 bits)
{
	struct bl_half_open_entry *half_open = bl_half_open_lookup();

	if (half_open && !(bits & BL_FLOW_OVERFLOW))
		__sync_fetch_and_add(&half_open->count, -1);
}

/* The entry of packets like @key. NULL when they are of no flow. */
static __always_inline struct bl_flow_entry *bl_flow_lookup(const struct bl_flow_key *key)
{
	struct bl_flow_entry *flow = bpf_map_lookup_elem(&bl_flow, key);

	return flow || !bl_overflow_used() ? flow : bpf_map_lookup_elem(&bl_overflow, key);
}

/*
 * Put an entry into the table that its bits name. False when @flags forbid it, or there is
 * no memory. The key must be on the stack: Linux 6.1 takes no other.
 */
static __always_inline bool bl_flow_update(const struct bl_flow_key *key,
					   const struct bl_flow_entry *entry, __u64 flags)
{
	if (!(entry->bits & BL_FLOW_OVERFLOW))
		return !bpf_map_update_elem(&bl_flow, key, entry, flags);
	bl_overflow_use();
	return !bpf_map_update_elem(&bl_overflow, key, entry, flags);
}

/* Add an entry. False when there is one of this key, or no memory. */
static __always_inline bool bl_flow_insert(const struct bl_flow_key *key,
					   const struct bl_flow_entry *entry)
{
	return bl_flow_update(key, entry, BPF_NOEXIST);
}

/* Add an entry, in place of one that is there. */
static __always_inline bool bl_flow_store(const struct bl_flow_key *key,
					  const struct bl_flow_entry *entry)
{
	return bl_flow_update(key, entry, BPF_ANY);
}

/* Remove the entry of @key from the table that the flow's @bits name. */
static __always_inline void bl_flow_delete(const struct bl_flow_key *key, __u8 bits)
{
	if (bits & BL_FLOW_OVERFLOW)
		bpf_map_delete_elem(&bl_overflow, key);
	else
		bpf_map_delete_elem(&bl_flow, key);
}

/*
 * Add an entry whose key no other flow may have, in either table. Of two that do so at
 * once one at most succeeds.
 */
static __noinline bool bl_flow_claim(const struct bl_flow_key *key,
				     const struct bl_flow_entry *entry)
{
	const void *other = NULL;

	if (!bl_flow_insert(key, entry))
		return false;
	if (entry->bits & BL_FLOW_OVERFLOW)
		other = bpf_map_lookup_elem(&bl_flow, key);
	else if (bl_overflow_used())
		other = bpf_map_lookup_elem(&bl_overflow, key);
	if (!other)
		return true;
	bl_flow_delete(key, entry->bits);
	return false;
}

/*
 * Whether the client's packets leave by the tunnel. The backend's node answers them, so
 * such a flow has a forward entry alone.
 */
static __always_inline bool bl_flow_leaves_by_tunnel(const struct bl_flow_entry *forward)
{
	return forward->bits & BL_FLOW_TUNNEL && forward->device;
}

/* Whether the backend was chosen by another node, which sends the packets here. */
static __always_inline bool bl_flow_comes_by_tunnel(const struct bl_flow_entry *forward)
{
	return forward->bits & BL_FLOW_TUNNEL && !forward->device;
}

static __always_inline enum bl_flow_state bl_flow_get_state(const struct bl_flow_entry *flow)
{
	return flow->bits & BL_FLOW_STATE;
}

static __always_inline void bl_flow_set_state(struct bl_flow_entry *flow, enum bl_flow_state state)
{
	flow->bits = (flow->bits & ~BL_FLOW_STATE) | state;
}

/* Whether the flow has been established: its client has gone on after a reply. */
static __always_inline bool bl_flow_proven(const struct bl_flow_entry *forward)
{
	enum bl_flow_state state = bl_flow_get_state(forward);

	return state >= BL_FLOW_ESTABLISHED && state != BL_FLOW_ABORTED;
}

/* The state of a half-open flow in @state after a packet that is no RST. */
static __always_inline enum bl_flow_state bl_flow_advance(enum bl_flow_state state,
							  bool from_client, __u8 tcp_flags)
{
	if (tcp_flags & BL_TCP_SYN)
		return from_client ? state : BL_FLOW_SYN_RECEIVED;
	if (from_client && state == BL_FLOW_SYN_RECEIVED)
		return BL_FLOW_ESTABLISHED;
	/* To the backend, the connection has been established. */
	if (!from_client && tcp_flags & BL_TCP_FIN)
		return BL_FLOW_ESTABLISHED;
	if (from_client)
		return tcp_flags & BL_TCP_FIN ? BL_FLOW_ABORTED : state;
	return BL_FLOW_SYN_RECEIVED;
}

/* Keep the affinity of a client, whose flow is established. */
static __noinline void bl_client_keep(const union bl_addr *client,
				      const struct bl_flow_entry *forward)
{
	__u32 id = forward->forward.service;
	const struct bl_service_entry *service = bl_service_lookup(id);
	struct bl_client_key key = {.client = *client, .service = id};
	struct bl_affinity_entry fresh = {
		.backend = forward->forward.backend,
		.last_used = bpf_ktime_get_coarse_ns(),
	};
	const struct bl_affinity_entry *known;

	/* ~0: made again, or chosen by another node. */
	if (!service || !service->affinity || fresh.backend.id == ~0U)
		return;
	known = bpf_map_lookup_elem(&bl_client, &key);
	if (known && known->backend.id == fresh.backend.id &&
	    known->backend.generation == fresh.backend.generation)
		return;
	if (bpf_map_update_elem(&bl_client, &key, &fresh, BPF_ANY))
		bl_count(BL_REASON_AFFINITY_NOT_STORED);
}

/*
 * Note in the forward entry what a packet of @client's connection tells of it. Two packets
 * at once may lose one of two notes; the next packet makes it again. TCP's flags are 0 for
 * UDP. Replies to what leaves by the tunnel are not seen: that the client goes on tells of
 * one.
 */
static __always_inline void bl_flow_track(struct bl_flow_entry *forward,
					  const union bl_addr *client, bool from_client,
					  __u8 tcp_flags)
{
	enum bl_flow_state mine = from_client ? BL_FLOW_CLIENT_CLOSING : BL_FLOW_BACKEND_CLOSING;
	enum bl_flow_state state = bl_flow_get_state(forward);

	if (tcp_flags & BL_TCP_RST) {
		bl_flow_set_state(forward,
				  bl_flow_proven(forward) ? BL_FLOW_CLOSED : BL_FLOW_ABORTED);
		return;
	}
	if (state < BL_FLOW_ESTABLISHED) {
		if (bl_flow_leaves_by_tunnel(forward) && !(tcp_flags & BL_TCP_SYN))
			state = BL_FLOW_SYN_RECEIVED;
		bl_flow_set_state(forward, bl_flow_advance(state, from_client, tcp_flags));
		if (!bl_flow_proven(forward))
			return;
		bl_half_open_give(forward->bits);
		bl_client_keep(client, forward);
		state = BL_FLOW_ESTABLISHED;
	}
	if (!(tcp_flags & BL_TCP_FIN) || state == BL_FLOW_ABORTED)
		return;
	bl_flow_set_state(forward,
			  state == BL_FLOW_ESTABLISHED || state == mine ? mine : BL_FLOW_CLOSED);
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
	reply->bits = BL_FLOW_IS_REPLY | (forward->bits & (BL_FLOW_STATE | BL_FLOW_OF_BOTH));
}
