/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packet flows: both directions of each connection that a packet of a client outside of
 * this node's sockets began. No other code of the programs writes their entries.
 *
 * Two flows may want the same key. So an entry is added only where there is none, and removed,
 * or used as the other half of a flow, only after a check that it refers back to that flow. A
 * flow that has lost an entry to another one ends.
 */
#pragma once

#include <beeline/clock.h>
#include <beeline/device.h>
#include <beeline/monitor_flow.h>
#include <beeline/packet.h>
#include <beeline/service.h>

/* The bits that both entries of a flow have. */
#define BL_FLOW_OF_BOTH (BL_FLOW_SNAT | BL_FLOW_POD | BL_FLOW_OVERFLOW | BL_FLOW_TUNNEL)

/* How many half-open flows bl_flow may hold. */
volatile const __u32 bl_half_open_max = ~0U >> 1;

/*
 * While a table of another size takes the place of bl_flow (bl_flow_moves): the former
 * table, whose entries the agent moves over. Nothing is added to it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_flow_key);
	__type(value, struct bl_flow_entry);
} bl_former_flow SEC(".maps");

volatile const bool bl_flow_moves;

#if BL_KEEPS_FORMER
/* The keys of entries that are removed for this program alone: it leaves the tables as they are. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_flow_key);
	__type(value, __u32);
} bl_removed_flow SEC(".maps");
#endif

/* Whether the entry of @key in bl_former_flow or bl_overflow is to be taken for removed. */
static __always_inline bool bl_flow_is_removed(const struct bl_flow_key *key)
{
#if BL_KEEPS_FORMER
	return bpf_map_lookup_elem(&bl_removed_flow, key) != NULL;
#else
	(void)key;
	return false;
#endif
}

/* For bl_flow_now. */
static volatile __u64 bl_clock;

/* Seconds of CLOCK_MONOTONIC_COARSE, as in bl_flow_forward. */
static __always_inline __u32 bl_flow_now(void)
{
	return bl_clock_units(&bl_clock, BL_NSEC_PER_SEC);
}

/*
 * How long ago @then was, by bl_flow_now(). The stamp may be ahead of @now: programs of one
 * device note the second apart, one of them up to a jiffy earlier.
 */
static __always_inline __u32 bl_flow_age(__u32 now, __u32 then)
{
	__s32 age = now - then;

	return age < 0 ? 0 : age;
}

/* Whether bl_overflow may hold something. */
static __always_inline bool bl_overflow_used(void)
{
	return *(const volatile __u32 *)&bl_value(bl_half_open)->overflow;
}

/* To be called before an entry is added to bl_overflow. */
static __always_inline void bl_overflow_use(void)
{
	struct bl_half_open_entry *half_open = bl_value(bl_half_open);
	__u32 now = bl_flow_now();

	if (half_open->overflow != now)
		half_open->overflow = now;
}

/* Take a place in bl_flow for a half-open flow. False when none is left. */
static __always_inline bool bl_half_open_take(void)
{
	struct bl_half_open_entry *half_open = bl_value(bl_half_open);

	if (half_open->count >= bl_half_open_max)
		return false;
	__sync_fetch_and_add(&half_open->count, 1);
	return true;
}

/* Uncount a flow that is half-open no more: established or removed. bl_overflow has no count. */
static __always_inline void bl_half_open_give(__u8 bits)
{
	if (!(bits & BL_FLOW_OVERFLOW))
		__sync_fetch_and_add(&bl_value(bl_half_open)->count, -1);
}

/* The place of a client's network in bl_source_share_entry.count. */
static __always_inline __u32 bl_source_share_place(const union bl_addr *client, __u64 seed)
{
	const __u8 *byte = client->byte;
	__u64 network = bl_addr_is_ipv4(client)
				? 1ULL << 48 | byte[12] << 16 | byte[13] << 8 | byte[14]
				: (__u64)(byte[0] << 8 | byte[1]) << 32 | (__u32)byte[2] << 24 |
					  byte[3] << 16 | byte[4] << 8 | byte[5];

	network = (network ^ seed) * 0x9e3779b97f4a7c15ULL;
	network = (network ^ network >> 32) * 0x9e3779b97f4a7c15ULL;
	return network >> (64 - BL_SOURCE_SHARE_BITS);
}

/* Count a flow of @client that is about to be established. False when its network has its share. */
static __always_inline bool bl_source_share_take(const union bl_addr *client)
{
	struct bl_source_share_entry *share = bl_value(bl_source_share);
	__u32 *count = &share->count[bl_source_share_place(client, share->seed)];

	if (*count >= share->most) {
		bl_count(BL_REASON_SOURCE_SHARE);
		return false;
	}
	__sync_fetch_and_add(count, 1);
	return true;
}

/* Both entries have their bits at one place. */
static __always_inline __u8 bl_flow_bits(const struct bl_flow_entry *flow)
{
	_Static_assert(offsetof(struct bl_flow_forward, bits) ==
			       offsetof(struct bl_flow_reply, bits),
		       "bits");
	_Static_assert(offsetof(struct bl_flow_forward, device) ==
			       offsetof(struct bl_flow_reply, device),
		       "device");
	return flow->forward.bits;
}

/* Index in bl_device of the device by which packets like the entry's leave; 0 is the host's stack. */
static __always_inline __u8 bl_flow_device(const struct bl_flow_entry *flow)
{
	__u8 device = flow->forward.device; /* both entries have it at one place */

	return device == BL_DEVICE_MASQUERADE ? 0 : device;
}

static __always_inline enum bl_flow_state bl_flow_state(__u8 bits)
{
	return bits & BL_FLOW_STATE;
}

static __always_inline void bl_flow_set_state(__u8 *bits, enum bl_flow_state state)
{
	*bits = (*bits & ~BL_FLOW_STATE) | state;
}

/*
 * Whether a flow is an active connection, which is counted at its backend: until a FIN or
 * RST, as in IPVS.
 */
static __always_inline bool bl_flow_active(__u8 bits)
{
	return bl_flow_state(bits) <= BL_FLOW_ESTABLISHED;
}

/* The flow is no active connection any more: count it no more, if it is counted. */
static __always_inline void bl_flow_drop(const struct bl_flow_forward *forward)
{
	if (unlikely(bl_active_used()))
		bl_active_drop(forward->backend_id, forward->generation, BL_ACTIVE_FLOWS);
}

/* Bring a flow into a state. One that closes is counted no more. */
static __always_inline void bl_flow_enter(struct bl_flow_forward *forward, enum bl_flow_state state)
{
	bool active = bl_flow_active(forward->bits);

	bl_flow_set_state(&forward->bits, state);
	if (active && !bl_flow_active(forward->bits))
		bl_flow_drop(forward);
}

/* The entry of packets like @key. NULL when they are of no flow. */
static __always_inline struct bl_flow_entry *bl_flow_lookup(const struct bl_flow_key *key)
{
	struct bl_flow_entry *flow = bpf_map_lookup_elem(&bl_flow, key);

	if (!flow && bl_flow_is_removed(key))
		return NULL;
	if (bl_flow_moves && !flow)
		flow = bpf_map_lookup_elem(&bl_former_flow, key);
	return flow || !bl_overflow_used() ? flow : bpf_map_lookup_elem(&bl_overflow, key);
}

/*
 * bl_flow_lookup for rare paths: the kernel inlines every lookup where it stands, and copies the
 * program each time.
 */
static __noinline struct bl_flow_entry *bl_flow_find(const struct bl_flow_key *key)
{
	return bl_flow_lookup(key);
}

/*
 * Whether an entry with such @bits is written to bl_overflow: a program that leaves the tables as they are has
 * bl_flow alone.
 */
static __always_inline bool bl_flow_overflows(__u8 bits)
{
	return !BL_KEEPS_FORMER && bits & BL_FLOW_OVERFLOW;
}

/*
 * Put an entry into the table that its bits name. False when @flags forbid it, or there is
 * no memory. The key must be on the stack: Linux 6.1 takes no other.
 */
static __always_inline bool bl_flow_update(const struct bl_flow_key *key, const void *entry,
					   __u8 bits, __u64 flags)
{
	if (!bl_flow_overflows(bits)) {
		if (bpf_map_update_elem(&bl_flow, key, entry, flags))
			return false;
		bl_count(BL_REASON_FLOW_ENTRY_ADDED);
		return true;
	}
	bl_overflow_use();
	return !bpf_map_update_elem(&bl_overflow, key, entry, flags);
}

/* Add an entry, in place of one that is there. */
static __always_inline bool bl_flow_store(const struct bl_flow_key *key,
					  const struct bl_flow_forward *forward)
{
	return bl_flow_update(key, forward, forward->bits, BPF_ANY);
}

/* Take back the entry of @key, which has just been added to the table that @bits name. */
static __always_inline void bl_flow_take_back(const struct bl_flow_key *key, __u8 bits)
{
	if (bl_flow_overflows(bits))
		bpf_map_delete_elem(&bl_overflow, key);
	else if (!bpf_map_delete_elem(&bl_flow, key))
		bl_count(BL_REASON_FLOW_ENTRY_REMOVED);
}

/* Remove the entry of @key from the table that the flow's @bits name. */
static __always_inline void bl_flow_delete(const struct bl_flow_key *key, __u8 bits)
{
#if BL_KEEPS_FORMER
	__u32 removed = 1;

	bpf_map_update_elem(&bl_removed_flow, key, &removed, BPF_ANY);
	bl_flow_take_back(key, bits);
#else
	if (bl_flow_moves && !(bits & BL_FLOW_OVERFLOW))
		bpf_map_delete_elem(&bl_former_flow, key);
	bl_flow_take_back(key, bits);
#endif
}

/*
 * Add an entry whose key no other flow may have, in either table. Of two that do so at
 * once one at most succeeds.
 */
static __noinline bool bl_flow_claim(const struct bl_flow_key *key,
				     const struct bl_flow_entry *entry)
{
	const void *other = NULL;
	__u8 bits = bl_flow_bits(entry);

	if (!bl_flow_update(key, entry, bits, BPF_NOEXIST))
		return false;
	if (bl_flow_is_removed(key))
		return true;
	if (bl_flow_overflows(bits))
		other = bpf_map_lookup_elem(&bl_flow, key);
	else if (bl_overflow_used())
		other = bpf_map_lookup_elem(&bl_overflow, key);
	if (bl_flow_moves && !other)
		other = bpf_map_lookup_elem(&bl_former_flow, key);
	if (!other)
		return true;
	bl_flow_take_back(key, bits);
	return false;
}

/*
 * Whether the client's packets leave by the tunnel. The backend's node answers them, so
 * such a flow has a forward entry alone.
 */
static __always_inline bool bl_flow_leaves_by_tunnel(const struct bl_flow_forward *forward)
{
	return forward->bits & BL_FLOW_TUNNEL && forward->device;
}

/* Whether the backend was chosen by another node, which sends the packets here. */
static __always_inline bool bl_flow_comes_by_tunnel(const struct bl_flow_forward *forward)
{
	return forward->bits & BL_FLOW_TUNNEL && !forward->device;
}

/* Whether the flow has been established: its client has gone on after a reply. */
static __always_inline bool bl_flow_established(__u8 bits)
{
	enum bl_flow_state state = bl_flow_state(bits);

	return state >= BL_FLOW_ESTABLISHED && state <= BL_FLOW_CLOSED;
}

/* The backend of a flow. NULL when it serves its Service no more, or is not known. */
static __always_inline const struct bl_backend_entry *
bl_flow_serving(const struct bl_flow_forward *forward)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(forward->backend_id);

	if (!backend || !bl_same_user(backend->generation, forward->generation) || !backend->state)
		return NULL;
	return backend;
}

/* The same of one that gets new connections: NULL also when it is in no set any more. */
static __always_inline const struct bl_backend_entry *
bl_flow_backend(const struct bl_flow_forward *forward)
{
	const struct bl_backend_entry *backend = bl_flow_serving(forward);

	if (!backend || !(backend->state & (BL_BACKEND_CLUSTER | BL_BACKEND_LOCAL)))
		return NULL;
	return backend;
}

/* Keep the affinity of a client, whose flow is established. */
static __noinline void bl_client_keep(const union bl_addr *client,
				      const struct bl_flow_forward *forward)
{
	const struct bl_backend_entry *backend = bl_flow_backend(forward);
	struct bl_client_key key = {.client = *client};
	const struct bl_service_entry *service;
	struct bl_affinity_entry *known;
	struct bl_affinity_entry fresh = {
		.backend.id = forward->backend_id,
		.last_used = bpf_ktime_get_coarse_ns(),
	};

	if (!backend)
		return;
	key.service = backend->service;
	fresh.backend.generation = backend->generation;
	service = bl_service_lookup(key.service);
	if (!service || !service->affinity)
		return;
	known = bpf_map_lookup_elem(&bl_client, &key);
	if (known && known->backend.id == fresh.backend.id &&
	    known->backend.generation == fresh.backend.generation) {
		known->last_used = fresh.last_used;
		return;
	}
	if (bpf_map_update_elem(&bl_client, &key, &fresh, BPF_ANY))
		bl_count(BL_REASON_AFFINITY_NOT_STORED);
}

enum bl_flow_tcp_limits {
	/* How far from the last one a sequence number may be that is believed: the segments
	 * that the kernel has put together are 64 KiB at most. */
	BL_FLOW_NEAR = 1 << 16,
	/* How far the next packet may be ahead: a window. */
	BL_FLOW_WINDOW = 1 << 22,
};

static __always_inline bool bl_flow_near(__u32 number, __u32 known)
{
	return number - known + BL_FLOW_NEAR <= 2 * BL_FLOW_NEAR;
}

/* Advance the known sequence number of a stream. One outside of the window changes nothing. */
static __always_inline void bl_flow_follow(__u32 *known, __u32 number)
{
	__u32 ahead = number - *known;

	if (ahead && (ahead < BL_FLOW_WINDOW || !*known))
		*known = number;
}

/* Advance both streams of a TCP connection by a packet of the client. */
static __always_inline void bl_flow_follow_both(struct bl_flow_forward *forward,
						const struct bl_packet *packet)
{
	if (packet->key.proto != IPPROTO_TCP)
		return;
	bl_flow_follow(&forward->progress.tcp.client_seq, packet->seq);
	bl_flow_follow(&forward->progress.tcp.backend_seq, packet->ack);
}

/* Whether an ACK of the client shows that it has got the backend's SYN. */
static __always_inline bool bl_flow_acknowledges(const struct bl_flow_forward *forward,
						 const struct bl_packet *packet)
{
	return packet->key.proto != IPPROTO_TCP || !forward->progress.tcp.backend_seq ||
	       bl_flow_near(packet->ack, forward->progress.tcp.backend_seq);
}

/*
 * The state of a half-open flow in @state after a packet that is no RST. The backend's data
 * shows that it has accepted the connection, also where its SYN cookie is not known here; its
 * ACK alone does not, which may answer a segment of no connection.
 */
static __always_inline enum bl_flow_state bl_flow_advance(const struct bl_flow_forward *forward,
							  enum bl_flow_state state,
							  const struct bl_packet *packet,
							  bool from_client)
{
	bool tcp = packet->key.proto == IPPROTO_TCP;

	if (packet->tcp_flags & BL_TCP_SYN)
		return from_client ? state : BL_FLOW_SYN_RECEIVED;
	if (from_client && state == BL_FLOW_SYN_RECEIVED && bl_flow_acknowledges(forward, packet))
		return BL_FLOW_ESTABLISHED;
	if (!from_client && (packet->tcp_flags & BL_TCP_FIN ||
			     (tcp && packet->data && state == BL_FLOW_SYN_RECEIVED)))
		return BL_FLOW_ESTABLISHED;
	if (from_client)
		return packet->tcp_flags & BL_TCP_FIN ? BL_FLOW_ABORTED : state;
	return BL_FLOW_SYN_RECEIVED;
}

/* A packet of a half-open flow that is no RST. True when it has established the flow. */
__noinline bool bl_flow_establish(struct bl_flow_forward *forward, const struct bl_packet *packet,
				  const union bl_addr *client, bool from_client)
{
	enum bl_flow_state state;

	if (!forward || !packet || !client)
		return false;
	state = bl_flow_state(forward->bits);
	if (packet->key.proto == IPPROTO_TCP && packet->tcp_flags & BL_TCP_SYN) {
		if (from_client)
			forward->progress.tcp.client_seq = packet->seq + 1;
		else
			forward->progress.tcp.backend_seq = packet->seq + 1;
	} else if (packet->key.proto == IPPROTO_TCP && !from_client && state == BL_FLOW_NEW) {
		forward->progress.tcp.backend_seq = 0; /* was refused */
	}
	/* Replies to tunnel traffic do not pass here: the client's next packet stands for them. */
	if (bl_flow_leaves_by_tunnel(forward) && !(packet->tcp_flags & BL_TCP_SYN))
		state = BL_FLOW_SYN_RECEIVED;
	state = bl_flow_advance(forward, state, packet, from_client);
	/* A forged source address gets as far, but not where TCP's sequence numbers are seen. */
	if (state == BL_FLOW_ESTABLISHED &&
	    (packet->key.proto != IPPROTO_TCP || bl_flow_leaves_by_tunnel(forward)) &&
	    !bl_source_share_take(client))
		state = BL_FLOW_SYN_RECEIVED;
	bl_flow_enter(forward, state);
	if (!bl_flow_established(forward->bits))
		return false;
	bl_half_open_give(forward->bits);
	bl_client_keep(client, forward);
	bl_flow_set_state(&forward->bits, BL_FLOW_ESTABLISHED);
	return true;
}

/*
 * Whether a FIN or RST has a sequence number near the connection's: it is no blind guess. Of the backend what
 * the client has acknowledged is known, and a window of data may be on its way after that: it is
 * believed there when its acknowledgement is near the client's number.
 */
static __always_inline bool bl_flow_believes(const struct bl_flow_forward *forward,
					     const struct bl_packet *packet, bool from_client)
{
	__u32 client = forward->progress.tcp.client_seq;
	__u32 known = from_client ? client : forward->progress.tcp.backend_seq;

	if (packet->key.proto != IPPROTO_TCP || !known || bl_flow_near(packet->seq, known))
		return true;
	return !from_client && packet->tcp_flags & BL_TCP_ACK &&
	       packet->seq - known < BL_FLOW_WINDOW && bl_flow_near(packet->ack, client);
}

/*
 * Note in the forward entry of @key what a packet of the connection tells of it, and tell what
 * has become of that. Two packets at once may lose one of two notes; the next packet makes it again.
 * Flags are 0 for UDP.
 */
static __always_inline void bl_flow_track(const struct bl_flow_key *key,
					  struct bl_flow_forward *forward,
					  const struct bl_packet *packet, bool from_client)
{
	enum bl_flow_state mine = from_client ? BL_FLOW_CLIENT_CLOSING : BL_FLOW_BACKEND_CLOSING;
	enum bl_flow_state state = bl_flow_state(forward->bits);

	if (state < BL_FLOW_ESTABLISHED && !(packet->tcp_flags & BL_TCP_RST)) {
		if (!bl_flow_establish(forward, packet, &key->src, from_client))
			return;
		bl_tell_flow(key, forward, packet->ifindex, BL_EVENT_ESTABLISHED, BL_REASON_COUNT);
		state = BL_FLOW_ESTABLISHED;
	}
	if (!(packet->tcp_flags & (BL_TCP_FIN | BL_TCP_RST))) {
		if (from_client && !(packet->tcp_flags & BL_TCP_SYN))
			bl_flow_follow_both(forward, packet);
		return;
	}
	if (state >= BL_FLOW_ABORTED ||
	    (bl_flow_established(forward->bits) && !bl_flow_believes(forward, packet, from_client)))
		return;
	if (from_client && packet->tcp_flags & BL_TCP_FIN)
		bl_flow_follow_both(forward, packet);
	if (packet->tcp_flags & BL_TCP_RST)
		state = bl_flow_established(forward->bits) ? BL_FLOW_CLOSED : BL_FLOW_ABORTED;
	else
		state = state == BL_FLOW_ESTABLISHED || state == mine ? mine : BL_FLOW_CLOSED;
	bl_flow_enter(forward, state);
	if (state != mine)
		bl_tell_flow(key, forward, packet->ifindex, BL_EVENT_ENDED, BL_REASON_COUNT);
}

/* Whether a reply entry belongs to the flow that gives packets another source as they leave. */
static __always_inline bool bl_reply_masquerades(const struct bl_flow_reply *reply)
{
	return reply->device == BL_DEVICE_MASQUERADE && reply->bits & BL_FLOW_SNAT;
}

/* The reply entry's key: the backend's packets as they arrive. */
static __always_inline void bl_flow_reply_key(const struct bl_flow_key *forward_key,
					      const struct bl_flow_forward *forward,
					      const union bl_addr *source, struct bl_flow_key *key)
{
	key->src = forward->backend;
	key->src_port = forward->backend_port;
	key->dst = *source;
	key->dst_port = forward->source.port;
	key->proto = forward_key->proto;
	bl_flow_key_clear(key);
}

/* The forward entry's key: the client's packets as they arrive. */
static __always_inline void bl_flow_forward_key(const struct bl_flow_key *reply_key,
						const struct bl_flow_reply *reply,
						struct bl_flow_key *key)
{
	key->src = reply->client;
	key->src_port = reply->client_port;
	key->dst = reply->service;
	key->dst_port = reply->service_port;
	key->proto = reply_key->proto;
	bl_flow_key_clear(key);
	key->masquerade = bl_reply_masquerades(reply);
}

/* Fill the reply entry that belongs to a forward entry. */
static __always_inline void bl_flow_make_reply(const struct bl_flow_key *forward_key,
					       const struct bl_flow_forward *forward,
					       __u8 client_device, __u32 now,
					       struct bl_flow_reply *reply)
{
	reply->service = forward_key->dst;
	reply->service_port = forward_key->dst_port;
	reply->client = forward_key->src;
	reply->client_port = forward_key->src_port;
	reply->touched = now - 1; /* the first reply is noted */
	if (forward_key->masquerade || forward->device == BL_DEVICE_MASQUERADE)
		reply->device = BL_DEVICE_MASQUERADE;
	else
		reply->device = forward->bits & BL_FLOW_POD ? 0 : client_device;
	reply->bits = BL_FLOW_IS_REPLY | (forward->bits & (BL_FLOW_STATE | BL_FLOW_OF_BOTH));
}

/* Whether the entry @flow, which may be NULL, is the reply entry of the flow of @forward_key. */
static __always_inline bool bl_flow_owns_reply(const struct bl_flow_key *forward_key,
					       const struct bl_flow_entry *flow)
{
	const struct bl_flow_reply *reply = &flow->reply;

	return flow && reply->bits & BL_FLOW_IS_REPLY &&
	       reply->service_port == forward_key->dst_port &&
	       reply->client_port == forward_key->src_port &&
	       bl_addr_equal(&reply->service, &forward_key->dst) &&
	       bl_addr_equal(&reply->client, &forward_key->src);
}

/* Whether the entry @flow, which may be NULL, is the forward entry of the flow of @reply_key. */
static __always_inline bool bl_flow_owns_forward(const struct bl_flow_key *reply_key,
						 const struct bl_flow_entry *flow)
{
	const struct bl_flow_forward *forward = &flow->forward;

	return flow && !(forward->bits & BL_FLOW_IS_REPLY) && !bl_flow_leaves_by_tunnel(forward) &&
	       forward->backend_port == reply_key->src_port &&
	       forward->source.port == reply_key->dst_port &&
	       bl_addr_equal(&forward->backend, &reply_key->src);
}

/*
 * Remove the entries of a flow of this @forward_key. False when the reply entry stays, which is
 * another flow's.
 */
__noinline bool bl_flow_remove(const struct bl_flow_key *forward_key,
			       const struct bl_flow_forward *forward, const union bl_addr *source)
{
	struct bl_flow_key key;
	bool owns = true;
	__u8 bits;

	if (!forward_key || !forward || !source)
		return false;
	bits = forward->bits;
	if (!bl_flow_established(bits))
		bl_half_open_give(bits);
	if (bl_flow_active(bits))
		bl_flow_drop(forward);
	if (!bl_flow_leaves_by_tunnel(forward)) {
		bl_flow_reply_key(forward_key, forward, source, &key);
		owns = bl_flow_owns_reply(forward_key, bl_flow_find(&key));
		if (owns)
			bl_flow_delete(&key, bits);
	}
	key = *forward_key;
	bl_flow_delete(&key, bits);
	return owns;
}

/*
 * Keep the reply entry alive beside the forward one: once a second it is looked up, so that
 * neither is evicted before the other, and made again if it is gone. False when another flow
 * has it.
 */
static __always_inline bool bl_flow_keep_reply(const struct bl_flow_key *forward_key,
					       struct bl_flow_forward *forward,
					       const union bl_addr *source, __u8 client_device,
					       __u32 now)
{
	struct bl_flow_entry fresh = {};
	const struct bl_flow_entry *there;
	struct bl_flow_key key;

	forward->used = now;
	if (bl_flow_leaves_by_tunnel(forward))
		return true;
	bl_flow_reply_key(forward_key, forward, source, &key);
	there = bl_flow_find(&key);
	if (!there) {
		bl_flow_make_reply(forward_key, forward, client_device, now, &fresh.reply);
		if (bl_flow_claim(&key, &fresh))
			return true;
		there = bl_flow_find(&key);
	}
	return !there || bl_flow_owns_reply(forward_key, there);
}

/*
 * Move a flow that is established from bl_overflow to bl_flow. When that fails, for want
 * of memory or because another packet of the flow is at it, the next packet tries again.
 */
__noinline bool bl_flow_settle(const struct bl_flow_key *forward_key,
			       const struct bl_flow_forward *forward, const union bl_addr *source,
			       __u8 client_device)
{
	struct bl_flow_entry entry = {};
	struct bl_flow_key key, first;
	bool has_reply;

	if (!forward_key || !forward || !source)
		return false;
	first = *forward_key;
	has_reply = !bl_flow_leaves_by_tunnel(forward);
	bl_flow_make_reply(&first, forward, client_device, bl_flow_now(), &entry.reply);
	bl_flow_reply_key(&first, forward, source, &key);
	entry.reply.bits &= ~BL_FLOW_OVERFLOW;
	if (has_reply && !bl_flow_update(&key, &entry, entry.reply.bits, BPF_NOEXIST))
		return false;
	entry.forward = *forward;
	entry.forward.bits &= ~BL_FLOW_OVERFLOW;
	/* An entry that has been evicted meanwhile may by now be another flow's. */
	if (bpf_map_lookup_elem(&bl_overflow, &first) != forward ||
	    !bl_flow_update(&first, &entry, entry.forward.bits, BPF_NOEXIST)) {
		if (has_reply)
			bl_flow_delete(&key, entry.forward.bits);
		return false;
	}
	if (has_reply)
		bl_flow_delete(&key, BL_FLOW_OVERFLOW);
	bl_flow_delete(&first, BL_FLOW_OVERFLOW);
	return true;
}
