/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A packet of a known flow, and what becomes of any packet with ports.
 */
#pragma once

#include <beeline/balance.h>

/* Remove the entries of a flow. */
static __noinline void bl_flow_remove(const struct bl_packet *packet,
				      const struct bl_flow_entry *forward,
				      const union bl_addr *source)
{
	__u8 bits = forward->bits;
	struct bl_flow_key key;

	if (!bl_flow_proven(forward))
		bl_half_open_give(bits);
	if (!bl_flow_leaves_by_tunnel(forward)) {
		bl_flow_reply_key(&packet->key, forward, source, &key);
		bl_flow_delete(&key, bits);
	}
	bl_flow_delete(&packet->key, bits);
}

/* Whether the backend of a flow is in none of its Service's sets any more. */
static __always_inline bool bl_flow_has_lost(const struct bl_flow_entry *forward)
{
	return !bl_backend_recall(forward->forward.backend, forward->forward.service,
				  BL_BACKEND_CLUSTER | BL_BACKEND_LOCAL);
}

/*
 * Whether a flow, by either entry, has a source port of this node that may be somebody
 * else's: TCP takes it without asking, and the backend has not confirmed it yet.
 */
static __always_inline bool bl_flow_disputable(const struct bl_packet *packet,
					       const struct bl_flow_entry *flow)
{
	return bl_flow_get_state(flow) == BL_FLOW_NEW && flow->bits & BL_FLOW_SNAT &&
	       packet->key.proto == IPPROTO_TCP;
}

/*
 * Whether a client's SYN begins a new flow although there is an entry: the flow is over, or
 * its source port may be somebody else's, since no reply has come for a second, which is
 * when a client sends its SYN again. Who that is need not be known here: this node may also
 * be a client at the backend's node, whose Beeline gives the backend this node's address,
 * too, and takes the replies for those to that client. What leaves by the tunnel may have
 * ended by a reset that was not seen here.
 */
static __noinline bool bl_flow_begins_again(const struct bl_packet *packet,
					    const struct bl_flow_entry *forward, __u32 now)
{
	return (bl_flow_disputable(packet, forward) && forward->forward.used != now) ||
	       bl_flow_get_state(forward) >= BL_FLOW_CLIENT_CLOSING ||
	       (bl_flow_leaves_by_tunnel(forward) && bl_flow_has_lost(forward));
}

/*
 * Whether a client's packet begins a new flow although there is an entry: a UDP
 * flow whose backend has left its sets, or the next connection of TCP or SCTP from
 * the same port. What the tunnel brings is for the node to decide that has chosen the
 * backend.
 */
static __always_inline bool bl_flow_renewed(const struct bl_packet *packet,
					    const struct bl_flow_entry *forward, __u32 now)
{
	if (packet->key.proto == IPPROTO_UDP)
		return bl_flow_comes_by_tunnel(forward)
			       ? now - forward->forward.backend.generation > BL_TUNNEL_SECONDS
			       : bl_flow_has_lost(forward);
	return (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK)) == BL_TCP_SYN &&
	       bl_flow_begins_again(packet, forward, now);
}

/*
 * Keep the reply entry alive beside the forward one: once a second it is looked up,
 * so that neither is evicted before the other, and made again if it is gone.
 */
static __noinline void bl_flow_touch_reply(const struct bl_packet *packet,
					   struct bl_flow_entry *forward,
					   const union bl_addr *source, __u8 client_device,
					   __u32 now)
{
	struct bl_flow_entry reply = {};
	struct bl_flow_key key;

	forward->touched = now;
	forward->forward.used = now;
	if (bl_flow_leaves_by_tunnel(forward))
		return;
	bl_flow_reply_key(&packet->key, forward, source, &key);
	bl_peers_note(&key.src, &key.dst, now);
	if (bl_flow_lookup(&key))
		return;
	bl_flow_make_reply(&packet->key, forward, client_device, now, &reply);
	bl_flow_insert(&key, &reply);
}

/* The device that the client of a flow is behind, as the reply entry has it. */
static __always_inline __u8 bl_flow_client_device(const struct bl_packet *packet, enum bl_hook hook,
						  const struct bl_flow_entry *forward)
{
	return forward->device == BL_DEVICE_TURNED ? BL_DEVICE_TURNED
						   : bl_client_device(packet, hook);
}

/*
 * Move a flow that is established from bl_overflow to bl_flow. When that fails, for want
 * of memory or because another packet of the flow is at it, the next packet tries again.
 */
static __noinline void bl_flow_settle(const struct bl_packet *packet,
				      const struct bl_flow_entry *forward,
				      const union bl_addr *source, __u8 client_device)
{
	bool has_reply = !bl_flow_leaves_by_tunnel(forward);
	struct bl_flow_entry entry = {};
	struct bl_flow_key key;

	bl_flow_make_reply(&packet->key, forward, client_device, bl_flow_now(), &entry);
	bl_flow_reply_key(&packet->key, forward, source, &key);
	entry.bits &= ~BL_FLOW_OVERFLOW;
	if (has_reply && !bl_flow_insert(&key, &entry))
		return;
	entry = *forward;
	entry.bits &= ~BL_FLOW_OVERFLOW;
	/* What has been evicted meanwhile may by now be another flow's. */
	if (bpf_map_lookup_elem(&bl_overflow, &packet->key) != forward ||
	    !bl_flow_insert(&packet->key, &entry)) {
		if (has_reply)
			bl_flow_delete(&key, entry.bits);
		return;
	}
	if (has_reply)
		bl_flow_delete(&key, BL_FLOW_OVERFLOW);
	bl_flow_delete(&packet->key, BL_FLOW_OVERFLOW);
}

/* A client's packet of a known flow; BL_FATE_UNKNOWN when the flow is over. */
static __always_inline enum bl_fate bl_flow_client(const struct bl_packet *packet,
						   enum bl_hook hook, struct bl_flow_entry *forward,
						   struct bl_way *way)
{
	union bl_addr *source = &way->to.src;
	__u32 now = bl_flow_now();

	*source = packet->key.src;
	if (forward->bits & BL_FLOW_SNAT) {
		if (!bl_flow_snat_source(forward, packet->ipv4, source))
			return BL_FATE_DROPPED;
	} else if (hook == BL_HOOK_POD_INGRESS) {
		bl_pod_source(packet, &forward->addr, source);
	}
	if (bl_flow_renewed(packet, forward, now)) {
		bl_flow_remove(packet, forward, source);
		return BL_FATE_UNKNOWN;
	}
	if (forward->touched != (__u16)now)
		bl_flow_touch_reply(packet, forward, source,
				    bl_flow_client_device(packet, hook, forward), now);
	bl_flow_track(forward, &packet->key.src, true, packet->tcp_flags);
	bl_way_to_backend(forward, way);
	if (unlikely(forward->bits & BL_FLOW_OVERFLOW) && bl_flow_proven(forward))
		bl_flow_settle(packet, forward, source,
			       bl_flow_client_device(packet, hook, forward));
	way->back = hook == BL_HOOK_POD_INGRESS && bl_addr_equal(&way->to.dst, &packet->key.src);
	return BL_FATE_TRANSLATED;
}

/*
 * Note in the forward entry what a reply tells: once a second, and whenever the
 * connection changes its state. A forward entry that is gone is made again, as of a
 * backend that is in no set. @ifindex is the device that the backend is behind, 0
 * when that is for the stack or a route to know.
 */
static __noinline void bl_flow_touch_forward(const struct bl_packet *packet,
					     struct bl_flow_entry *reply, __u32 ifindex, __u32 now)
{
	struct bl_flow_entry *forward, fresh = {};
	struct bl_flow_key key;
	const __u32 *id;

	reply->touched = now;
	bl_peers_note(&packet->key.src, &packet->key.dst, now);
	bl_flow_forward_key(&packet->key, reply, &key);
	forward = bl_flow_lookup(&key);
	if (forward) {
		forward->forward.used = now;
		bl_flow_track(forward, &key.src, false, packet->tcp_flags);
		return;
	}
	fresh.addr = packet->key.src;
	fresh.port = packet->key.src_port;
	fresh.other_port = packet->key.dst_port;
	fresh.forward.backend.id = ~0U;
	fresh.forward.used = now;
	fresh.touched = now;
	fresh.bits = reply->bits & BL_FLOW_OF_BOTH;
	bl_flow_set_state(&fresh, reply->bits & BL_FLOW_OVERFLOW ? BL_FLOW_SYN_RECEIVED
								 : BL_FLOW_ESTABLISHED);
	id = bpf_map_lookup_elem(&bl_device_id, &ifindex);
	if (reply->device == BL_DEVICE_TURNED)
		fresh.device = BL_DEVICE_TURNED;
	else if (!(reply->bits & BL_FLOW_TUNNEL))
		fresh.device = id ? *id : reply->bits & BL_FLOW_SNAT ? BL_DEVICE_ROUTED : 0;
	bl_flow_insert(&key, &fresh);
}

/*
 * Whether a reply is translated at this hook: a pod's where it reaches the pod, or,
 * when the pod answered itself, where it left it; one to this node's own address where
 * it comes in; one that turns round where it would leave; others at the first device that faces the outside.
 */
static __always_inline bool bl_flow_reply_here(const struct bl_packet *packet,
					       const struct bl_flow_entry *reply, enum bl_hook hook)
{
	bool pod = reply->bits & BL_FLOW_POD;
	bool itself = pod && bl_addr_equal(&reply->client, &packet->key.src);

	if (reply->device == BL_DEVICE_TURNED)
		return hook == BL_HOOK_EGRESS;
	switch (hook) {
	case BL_HOOK_POD_INGRESS:
		return itself || reply->bits & BL_FLOW_SNAT;
	case BL_HOOK_POD_EGRESS:
		return (pod && !itself) || reply->bits & BL_FLOW_SNAT;
	default:
		return !pod;
	}
}

/*
 * Whether a packet that looks like a reply is for somebody else, who had the source port
 * before the flow took it. A backend that knows a connection from there answers a SYN as
 * within that one; else it answers with a SYN of its own.
 */
static __noinline bool bl_flow_disputes(struct BL_CONTEXT *context, const struct bl_packet *packet,
					const struct bl_flow_entry *reply)
{
	return (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK)) != (BL_TCP_SYN | BL_TCP_ACK) &&
	       bl_flow_disputable(packet, reply) &&
	       bl_port_taken(context, &packet->key, packet->ipv4);
}

/* A backend's packet of a known flow that is translated at this hook. */
static __always_inline enum bl_fate bl_flow_reply(struct BL_CONTEXT *context,
						  const struct bl_packet *packet, enum bl_hook hook,
						  struct bl_flow_entry *reply, struct bl_way *way)
{
	__u32 ifindex = hook == BL_HOOK_INGRESS ? packet->ifindex : 0;
	__u32 now = bl_flow_now();

	if (unlikely(bl_flow_get_state(reply) == BL_FLOW_NEW)) {
		if (bl_flow_disputes(context, packet, reply))
			return BL_FATE_PASSES;
		bl_flow_set_state(reply, BL_FLOW_SYN_RECEIVED);
	}
	if (reply->touched != (__u16)now ||
	    packet->tcp_flags & (BL_TCP_SYN | BL_TCP_FIN | BL_TCP_RST))
		bl_flow_touch_forward(packet, reply, ifindex, now);
	way->to.src = reply->addr;
	way->to.dst = reply->client;
	way->to.src_port = reply->port;
	way->to.dst_port = reply->other_port;
	way->device =
		hook == BL_HOOK_EGRESS && reply->device != BL_DEVICE_TURNED ? 0 : reply->device;
	way->back = hook == BL_HOOK_POD_INGRESS;
	way->clamp = bl_tunnel_clamp && reply->bits & BL_FLOW_TUNNEL &&
		     packet->tcp_flags & BL_TCP_SYN && packet->key.proto == IPPROTO_TCP;
	return BL_FATE_TRANSLATED;
}

/*
 * Whether a TCP packet without a flow belongs to a connection that is sent on by the
 * ring of its Service: the flow was another node's, or has been forgotten.
 */
static __noinline bool bl_flow_resumes(const struct bl_packet *packet)
{
	const struct bl_service_entry *service;
	struct bl_frontend_entry frontend;
	enum bl_reason reason;

	frontend = bl_packet_frontend(packet, bl_flow_now(), &reason);
	if (frontend.kind == BL_FRONTEND_NONE)
		return false;
	service = bl_service_lookup(frontend.service);
	return service && service->algorithm == BL_ALGORITHM_MAGLEV;
}

/* Whether a packet is the first one of a connection of TCP or SCTP. */
static __always_inline bool bl_flow_opens(const struct bl_packet *packet)
{
	return (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK | BL_TCP_RST)) == BL_TCP_SYN;
}

/* Whether a client's packet that has no flow begins one. */
static __always_inline bool bl_flow_begins(const struct bl_packet *packet)
{
	if (packet->key.proto == IPPROTO_UDP || bl_flow_opens(packet))
		return true;
	return packet->key.proto == IPPROTO_TCP &&
	       (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK | BL_TCP_RST)) == BL_TCP_ACK &&
	       bl_filter_test_rings() && bl_flow_resumes(packet);
}

/*
 * What becomes of @packet; when it is translated, @way says how it goes on.
 *
 * With BL_SYN_FIRST a SYN begins a flow unseen: that of a new flow is not there, and to look
 * for it costs a quarter of what it costs to store it.
 */
static __always_inline enum bl_fate bl_decide(struct BL_CONTEXT *context,
					      const struct bl_packet *packet, enum bl_hook hook,
					      struct bl_way *way)
{
	enum bl_former former = BL_FORMER_NONE;
	enum bl_fate fate = BL_FATE_UNKNOWN;
	struct bl_flow_entry *flow;

	if (BL_SYN_FIRST && bl_flow_opens(packet)) {
		fate = bl_flow_begin(context, packet, hook, BL_FORMER_UNKNOWN, way);
		if (fate != BL_FATE_UNKNOWN && fate != BL_FATE_PASSES)
			return fate;
	}
	flow = bl_flow_lookup(&packet->key);
	if (flow && flow->bits & BL_FLOW_IS_REPLY)
		return bl_flow_reply_here(packet, flow, hook)
			       ? bl_flow_reply(context, packet, hook, flow, way)
			       : BL_FATE_PASSES;
	if (hook == BL_HOOK_POD_EGRESS || (!flow && fate == BL_FATE_PASSES))
		return BL_FATE_PASSES;
	if (flow) {
		former = bl_flow_disputable(packet, flow) ? BL_FORMER_UNANSWERED : BL_FORMER_OVER;
		fate = bl_flow_client(packet, hook, flow, way);
		if (fate != BL_FATE_UNKNOWN)
			return fate;
	}
	if (!bl_flow_begins(packet))
		return BL_FATE_PASSES; /* of a connection that somebody else set up */
	fate = bl_flow_begin(context, packet, hook, former, way);
	/* Resets are made for SYNs: the stack answers what is within a connection. */
	if (fate == BL_FATE_REFUSED && packet->key.proto == IPPROTO_TCP &&
	    !(packet->tcp_flags & BL_TCP_SYN))
		return BL_FATE_PASSES;
	return fate;
}
