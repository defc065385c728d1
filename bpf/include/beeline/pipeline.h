/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A packet's path, the same at every hook; bl_decide, at the end, is the page to read first:
 *
 *   known flow?   flow_table.h   its entry says where the packet goes
 *   Service       service.h      destination -> frontend -> Service
 *   backend       service.h      one of the Service's set
 *   route         route.h        by which device, to another node, by the tunnel
 *   source port   source_port.h  which port the backend sees
 *   remember      flow_table.h   two entries
 *   rewrite, send                the program that includes this file
 *
 * That program defines BL_CONTEXT, the type of its context; bl_context_ct_lookup, its lookup of
 * connection tracking; bl_context_mark, the mark of the packet; BL_ANSWERS, whether it answers a
 * refused packet; BL_SYN_FIRST, whether it takes a SYN for the first packet of a flow before it looks
 * one up; BL_KEEPS_FORMER, whether it leaves the former flow table and bl_overflow as they are; and
 * BL_EVENT_HOOK, see monitor_flow.h.
 */
#pragma once

#include <beeline/opt/outlier_packet.h>
#include <beeline/peers.h>
#include <beeline/source_port.h>

/*
 * Refuse or drop a new connection to @target, which need not have a Service. A refusal is counted
 * by the program that answers.
 */
static __always_inline enum bl_verdict
bl_refuse(const struct bl_packet *packet, const struct bl_target *target, enum bl_reason reason)
{
	bool drops = bl_reason_drops(reason);

	if (drops || BL_ANSWERS) {
		bl_refuse_count(target->stat, reason);
		bl_tell_packet(packet, bl_target_service(target),
			       drops ? BL_EVENT_DROPPED : BL_EVENT_REFUSED, reason);
	}
	return drops ? BL_VERDICT_DROPPED : BL_VERDICT_REFUSED;
}

/* The path of a client's packet by its flow's forward entry; its source is known. */
static __always_inline void bl_path_to_backend(const struct bl_flow_forward *forward,
					       struct bl_path *path)
{
	path->to.dst = forward->backend;
	path->to.src_port = forward->source.port;
	path->to.dst_port = forward->backend_port;
	path->device = bl_flow_device((const struct bl_flow_entry *)forward);
	path->tunnel = bl_flow_leaves_by_tunnel(forward);
}

/*
 * Whether a pod's packet goes straight back to it: the pod is its own backend. One that is
 * masqueraded goes by the stack.
 */
static __always_inline bool bl_path_back(const struct bl_packet *packet, enum bl_hook hook,
					 __u8 device, const struct bl_path *path)
{
	return hook == BL_HOOK_POD_INGRESS && device != BL_DEVICE_MASQUERADE &&
	       bl_addr_equal(&path->to.dst, &packet->key.src);
}

/* Count a new flow as half-open; beyond their share it goes to bl_overflow. */
static __always_inline void bl_plan_share(struct bl_flow_forward *forward)
{
	if (bl_half_open_take())
		return;
	bl_count(BL_REASON_FLOW_OVERFLOW);
	forward->bits |= BL_FLOW_OVERFLOW;
}

/*
 * Whether a new flow need not be stored: its replies do not come by this node, and the ring gives
 * each of its packets the same backend. See bl_flow_begins, too.
 */
static __always_inline bool bl_plan_stateless(const struct bl_packet *packet,
					      const struct bl_plan *plan,
					      const struct bl_flow_forward *forward)
{
	const struct bl_backend_entry *backend;
	const struct bl_service_entry *service;

	if (!(forward->bits & BL_FLOW_OVERFLOW) || !bl_flow_leaves_by_tunnel(forward) ||
	    packet->key.proto == IPPROTO_SCTP)
		return false;
	backend = bl_backend_lookup(plan->ref.id);
	service = backend ? bl_service_lookup(backend->service) : NULL;
	return service && service->algorithm == BL_ALGORITHM_MAGLEV;
}

/* Undo the counts of a new flow that turns out to be there already. */
static __always_inline enum bl_verdict bl_plan_withdraw(const struct bl_plan *plan,
							const struct bl_flow_forward *forward)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(plan->ref.id);
	struct bl_service_stat_entry *stat;

	bl_half_open_give(forward->bits);
	stat = backend ? bl_service_stat_lookup(backend->service) : NULL;
	if (stat)
		stat->connections--;
	return BL_VERDICT_UNKNOWN;
}

/* The source port that a new flow tries first; 0 is any free one. */
static __always_inline __be16 bl_plan_port(const struct bl_packet *packet,
					   const struct bl_plan *plan)
{
	if (plan->former == BL_FORMER_CLASHED)
		return 0;
	if (!(plan->bits & BL_FLOW_SNAT))
		return packet->key.src_port;
	return bpf_htons(
		bl_source_port_first(bl_value(bl_source_port), bpf_ntohs(packet->key.src_port)));
}

/* Fill the forward entry of a new flow. */
static __always_inline void bl_plan_make_forward(const struct bl_packet *packet,
						 const struct bl_plan *plan,
						 struct bl_flow_forward *forward)
{
	forward->backend = plan->backend;
	forward->backend_port = plan->port;
	forward->backend_id = plan->ref.id;
	forward->generation = plan->ref.generation;
	forward->used = bl_flow_now();
	forward->device = plan->device;
	forward->bits = BL_FLOW_NEW | plan->bits;
	forward->progress.tcp.client_seq = packet->key.proto == IPPROTO_TCP ? packet->seq + 1 : 0;
	/* A packet of the backend clears it, and of a flow by the tunnel none comes here. */
	forward->progress.tcp.refused = plan->refused && !bl_flow_leaves_by_tunnel(forward);
	if (bl_flow_leaves_by_tunnel(forward))
		forward->source.node = plan->node;
	else
		forward->source.port = bl_plan_port(packet, plan);
}

/*
 * Whether the host's sockets and conntrack are looked up before a flow takes a source port of
 * this node. That costs as much as the rest of a new flow, storing excepted. So a TCP connection
 * takes the port, and the backend's first answer shows whether it was in use: see
 * bl_flow_clashes. The next one from the same port, and a repeated SYN, look first.
 */
static __always_inline bool bl_plan_asks(const struct bl_packet *packet, const struct bl_plan *plan)
{
	return plan->bits & BL_FLOW_SNAT &&
	       (plan->former == BL_FORMER_OVER || plan->former == BL_FORMER_CLASHED ||
		packet->key.proto != IPPROTO_TCP || !(packet->tcp_flags & BL_TCP_SYN));
}

/* Fill the reply entry of a flow that @packet, whose key is that of the forward entry, begins. */
static __always_inline void bl_plan_make_reply(const struct bl_packet *packet,
					       const struct bl_flow_forward *forward,
					       __u8 client_device, __u32 now,
					       struct bl_flow_reply *reply)
{
	bl_flow_make_reply(&packet->key, forward, client_device, now, reply);
	/* Only the answer to a SYN shows whether the port was in use: see bl_flow_clashes. */
	if (packet->key.proto == IPPROTO_TCP && !(packet->tcp_flags & BL_TCP_SYN))
		bl_flow_set_state(&reply->bits, BL_FLOW_SYN_RECEIVED);
}

/*
 * Store the reply entry of a flow whose forward entry is stored, which gets another source
 * port when that is taken. False, and the forward entry is gone, when there was none. @key is
 * left to be that of the forward entry.
 */
static __always_inline bool bl_plan_store_reply(struct BL_CONTEXT *context,
						const struct bl_packet *packet,
						const struct bl_plan *plan,
						struct bl_flow_work *work, struct bl_flow_key *key)
{
	struct bl_flow_forward *forward = &work->forward.forward;
	struct bl_flow_entry *stored;

	bl_plan_make_reply(packet, forward, plan->client_device, bl_flow_now(), &work->reply.reply);
	bl_flow_reply_key(key, forward, &plan->source, &work->key);
	if (!bl_source_port_claim(context, key, bl_plan_asks(packet, plan))) {
		bl_source_port_exhausted(&work->key, plan->ref.id, bl_flow_now());
		bl_flow_delete(key, forward->bits);
		return false;
	}
	if (unlikely(forward->source.port != work->key.dst_port)) {
		forward->source.port = work->key.dst_port;
		stored = bl_flow_find(key);
		if (stored)
			stored->forward.source.port = work->key.dst_port;
	}
	return true;
}

/*
 * Store the entries of a new flow and its path. With nothing stored, BL_VERDICT_DROPPED
 * when there was no free source port or no memory, BL_VERDICT_UNKNOWN when the flow is there
 * already.
 */
__noinline enum bl_verdict bl_plan_store(struct BL_CONTEXT *context, const struct bl_packet *packet,
					 const struct bl_plan *plan, struct bl_path *path)
{
	struct bl_flow_forward *forward;
	struct bl_flow_work *work = bl_flow_work_lookup();
	struct bl_flow_key key;

	if (!packet || !plan || !path || !work)
		return BL_VERDICT_DROPPED;
	forward = &work->forward.forward;
	bl_plan_make_forward(packet, plan, forward);
	bl_plan_share(forward);
	key = packet->key;
	if (bl_plan_stateless(packet, plan, forward)) {
		if (plan->former == BL_FORMER_UNKNOWN && bl_flow_find(&key))
			return bl_plan_withdraw(plan, forward);
	} else if (plan->former == BL_FORMER_UNKNOWN) {
		if (!bl_flow_claim(&key, &work->forward))
			return bl_plan_withdraw(plan, forward);
	} else if (!bl_flow_store(&key, forward)) {
		bl_half_open_give(forward->bits);
		bl_packet_drop(packet, BL_REASON_FLOW_NOT_STORED);
		return BL_VERDICT_DROPPED;
	}
	if (!bl_flow_leaves_by_tunnel(forward)) {
		if (!bl_plan_store_reply(context, packet, plan, work, &key)) {
			bl_half_open_give(forward->bits);
			bl_tell_flow(&packet->key, forward, packet->ifindex, BL_EVENT_DROPPED,
				     BL_REASON_NO_SOURCE_PORT);
			return BL_VERDICT_DROPPED;
		}
		bl_peers_note(&plan->backend, &plan->source, bl_flow_now());
	}
	path->to.src = plan->source;
	bl_path_to_backend(forward, path);
	bl_tell_flow(&packet->key, forward, packet->ifindex, BL_EVENT_CONNECTION, BL_REASON_COUNT);
	return BL_VERDICT_TRANSLATED;
}

/*
 * Whether a datagram from outside has come from a frontend: from the address, port and protocol of
 * a Service, or a NodePort of this node or another one. An answer to it would be balanced in its
 * turn, and so on without an end where the backend answers answers. No host has the source, but of
 * an external IP or a node: what that sends from the port cannot be told from a forged one. What TCP
 * and SCTP answer begins no flow.
 */
static __noinline bool bl_client_is_frontend(const struct bl_packet *packet)
{
	struct bl_dst src = {
		.high = ((const __u64 *)&packet->key.src)[0],
		.low = ((const __u64 *)&packet->key.src)[1],
		.port = packet->key.src_port,
		.proto = packet->key.proto,
		.ipv4 = packet->ipv4,
	};

	if (packet->key.proto != IPPROTO_UDP)
		return false;
	if (bl_frontend_get(src.high, src.low, src.tail).kind != BL_FRONTEND_NONE)
		return true;
	return bl_node_port_get(&src).kind != BL_FRONTEND_NONE &&
	       (bl_node_addr_serves(&src, 0) || bl_node_of(&packet->key.src));
}

/* Whether a packet is the first one of a connection of TCP or SCTP. */
static __always_inline bool bl_flow_opens(const struct bl_packet *packet)
{
	return (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK | BL_TCP_RST)) == BL_TCP_SYN;
}

/* Whether SNAT gives what leaves by a device the address that a reply is for. */
static __always_inline bool bl_device_sent(__u32 id, const struct bl_flow_key *reply_key, bool ipv4)
{
	const struct bl_device_entry *device = bl_device_lookup(id);
	union bl_addr addr;

	if (!device)
		return false;
	addr = bl_device_addr(device, ipv4);
	return bl_addr_equal(&addr, &reply_key->dst);
}

/*
 * Whether a packet is for an address that connections of this node are from: one that NodePorts
 * answer on, or that of SNAT at the device. A function for the stack it takes.
 */
static __noinline bool bl_packet_to_node(const struct bl_packet *packet, enum bl_hook hook)
{
	struct bl_dst dst = bl_packet_dst(packet);

	return bl_node_addr_serves(&dst, 0) ||
	       bl_device_sent(bl_client_device(packet, hook), &packet->key, packet->ipv4);
}

/* Whether a packet belongs to a connection of this node, or of a pod that it masquerades. */
static __noinline bool bl_packet_owned(struct BL_CONTEXT *context, const struct bl_packet *packet,
				       enum bl_hook hook)
{
	bool opens = bl_flow_opens(packet);

	if (opens && (packet->key.proto != IPPROTO_TCP || !bl_packet_to_node(packet, hook)))
		return false;
	return bl_port_answered(context, &packet->key, packet->ipv4, opens);
}

/*
 * Whether a packet to a frontend that no flow has belongs to a connection of this node, not to a
 * client: an external or load-balancer IP may be an address of the node, and a NodePort a port that
 * netfilter masquerades from (--random-fully takes any from 1024 on) or the kernel (of a wide
 * ip_local_port_range). As in conntrack, of which kube-proxy's rules see first packets alone, the
 * connection that is there goes on. So it does after a forged SYN, whose flow would have all that
 * comes later; SYNs to NodePorts save the lookups.
 */
static __always_inline bool bl_packet_answers(struct BL_CONTEXT *context,
					      const struct bl_packet *packet, enum bl_hook hook,
					      enum bl_frontend_kind kind)
{
	if (hook == BL_HOOK_EGRESS)
		return false;
	if (kind == BL_FRONTEND_NODE_PORT && bl_flow_opens(packet))
		return false;
	return (kind == BL_FRONTEND_EXTERNAL_IP || kind == BL_FRONTEND_LOAD_BALANCER ||
		kind == BL_FRONTEND_NODE_PORT) &&
	       bl_packet_owned(context, packet, hook);
}

/* Select the backend of a flow by its first packet. */
__noinline enum bl_verdict bl_plan_balance(struct BL_CONTEXT *context,
					   const struct bl_packet *packet, enum bl_hook hook,
					   struct bl_plan *plan)
{
	struct bl_client client = {.packet = packet};
	struct bl_target target;
	struct bl_choice choice;
	enum bl_reason reason;
	struct bl_dst dst;

	if (!packet || !plan)
		return BL_VERDICT_DROPPED;
	client.now = bl_flow_now();
	dst = bl_packet_dst(packet);
	reason = bl_service_find(&client, &dst, &target);
	if (reason == BL_REASON_COUNT && !target.stat)
		return BL_VERDICT_PASSES;
	if (bl_packet_answers(context, packet, hook, target.frontend.kind))
		return BL_VERDICT_PASSES;
	if (hook == BL_HOOK_INGRESS) {
		if (bl_addr_is_martian(&packet->key.src))
			return BL_VERDICT_PASSES; /* to be dropped by the stack */
		if (reason == BL_REASON_COUNT && bl_client_is_frontend(packet))
			reason = BL_REASON_SOURCE_FRONTEND;
	}
	if (reason != BL_REASON_COUNT)
		return bl_refuse(packet, &target, reason);
	plan->client_device = bl_client_device(packet, hook);
	client.internal =
		hook != BL_HOOK_INGRESS || bl_packet_internal(target.frontend, plan->client_device);
	choice = bl_service_balance(&client, &dst, &target);
	if (!choice.backend)
		return bl_refuse(packet, &target, choice.reason);
	plan->ref = choice.ref;
	plan->counted = choice.counted;
	if (unlikely(target.service->outliers)) {
		bl_plan_again(packet, plan, choice.member);
		choice.backend = bl_backend_lookup(plan->ref.id);
		if (!choice.backend)
			return BL_VERDICT_DROPPED;
	}
	plan->backend = choice.backend->addr;
	plan->port = choice.backend->port;
	plan->on_node = choice.backend->state & BL_BACKEND_ON_NODE;
	/* Of all policies, only externalTrafficPolicy: Local is to show the client. */
	plan->keep = choice.member == BL_BACKEND_LOCAL &&
		     !(bl_masquerade_all &&
		       (client.internal || target.frontend.kind == BL_FRONTEND_CLUSTER_IP));
	if (bl_tunnel_port && hook == BL_HOOK_INGRESS && !bl_masquerade_all &&
	    target.service->forwarding == BL_FORWARDING_DSR)
		plan->node = choice.backend->node;
	return BL_VERDICT_TRANSLATED;
}

/* The key of packets in the other direction. */
static __always_inline void bl_flow_reverse_key(const struct bl_packet *packet,
						struct bl_flow_key *key)
{
	key->src = packet->key.dst;
	key->dst = packet->key.src;
	key->src_port = packet->key.dst_port;
	key->dst_port = packet->key.src_port;
	key->proto = packet->key.proto;
	bl_flow_key_clear(key);
}

/*
 * Whether a packet that is for no Service is the first one of a client's own connection to a
 * backend, from the port that a flow of the client with that backend has kept: the replies of
 * the two could not be told apart. Such a connection gets another source port, as netfilter
 * would give it one. (With SNAT the source is none of a client: the packet is one of that flow,
 * after its hairpin.)
 */
__noinline bool bl_flow_crosses(const struct bl_packet *packet, struct bl_plan *plan)
{
	const struct bl_flow_entry *flow;
	struct bl_flow_key key;

	if (!packet || !plan)
		return false;
	bl_flow_reverse_key(packet, &key);
	if (!bl_peers_has(&key.src, &key.dst))
		return false;
	flow = bl_flow_find(&key);
	if (!flow || (bl_flow_bits(flow) & (BL_FLOW_IS_REPLY | BL_FLOW_SNAT)) != BL_FLOW_IS_REPLY ||
	    bl_flow_owns_reply(&packet->key, flow))
		return false;
	plan->backend = packet->key.dst;
	plan->port = packet->key.dst_port;
	plan->ref.id = ~0U;
	plan->keep = true;
	plan->former = BL_FORMER_CLASHED;
	return true;
}

/*
 * Whether a packet that leaves the host's stack is a client's, on the way to its backend by
 * BL_DEVICE_MASQUERADE.
 */
__noinline bool bl_masquerades(const struct bl_packet *packet)
{
	const struct bl_flow_entry *flow;
	struct bl_flow_key key;

	if (!packet)
		return false;
	bl_flow_reverse_key(packet, &key);
	flow = bl_flow_find(&key);
	return flow && flow->reply.device == BL_DEVICE_MASQUERADE &&
	       (bl_flow_bits(flow) & (BL_FLOW_IS_REPLY | BL_FLOW_SNAT)) == BL_FLOW_IS_REPLY;
}

/* Whether there may be such packets: the agent has said which addresses they get. */
static __always_inline bool bl_masquerade_used(void)
{
	const struct bl_device_entry *device = bl_device_lookup(BL_DEVICE_ROUTED);

	return device && (bl_device_has_addr(device, true) || bl_device_has_addr(device, false));
}

/*
 * The flow that gives such a packet an address of this node. Its replies, to that address, go up
 * the stack as those to the client.
 */
__noinline enum bl_verdict bl_masquerade_plan(const struct bl_packet *packet, enum bl_hook hook,
					      struct bl_plan *plan)
{
	const struct bl_device_entry *device;

	if (!packet || !plan)
		return BL_VERDICT_DROPPED;
	plan->backend = packet->key.dst;
	plan->port = packet->key.dst_port;
	plan->ref.id = ~0U;
	plan->bits = BL_FLOW_SNAT;
	plan->device = hook == BL_HOOK_EGRESS ? bl_device_of(packet->ifindex) : BL_DEVICE_ROUTED;
	device = bl_device_lookup(plan->device);
	if (!device || !bl_device_has_addr(device, packet->ipv4)) {
		bl_packet_drop(packet, BL_REASON_NO_SOURCE_ADDRESS);
		return BL_VERDICT_DROPPED;
	}
	plan->source = bl_device_addr(device, packet->ipv4);
	return BL_VERDICT_TRANSLATED;
}

/* Whether no client's packets to Services pass a hook. */
static __always_inline bool bl_hook_for_replies(enum bl_hook hook)
{
	return hook == BL_HOOK_POD_EGRESS || hook == BL_HOOK_BACKEND_INGRESS;
}

/*
 * Whether the flow of a client's packet only gives it another source. By the hook, too: what balances
 * is then left out of the programs that never do, a third of what the kernel would check.
 */
static __always_inline bool bl_flow_only_masquerades(const struct bl_packet *packet,
						     enum bl_hook hook)
{
	return bl_hook_for_replies(hook) || packet->key.masquerade;
}

/* Find the route of a new flow to its backend, and store it; see bl_plan_store. */
static __always_inline enum bl_verdict bl_plan_begin(struct BL_CONTEXT *context,
						     const struct bl_packet *packet,
						     enum bl_hook hook, struct bl_plan *plan,
						     struct bl_path *path)
{
	if (bl_flow_only_masquerades(packet, hook))
		return bl_plan_store(context, packet, plan, path);
	if (hook == BL_HOOK_POD_INGRESS) {
		bl_plan_pod(packet, plan);
	} else if (!bl_plan_route(context, packet, hook == BL_HOOK_EGRESS, plan)) {
		bl_packet_drop(packet, BL_REASON_NO_SOURCE_ADDRESS);
		return BL_VERDICT_DROPPED;
	}
	if (hook == BL_HOOK_EGRESS && !plan->device && !bl_plan_hairpin(packet, plan))
		return BL_VERDICT_DROPPED;
	return bl_plan_store(context, packet, plan, path);
}

/*
 * The first packet of a flow. BL_VERDICT_UNKNOWN when that is there already, which only shows
 * with BL_FORMER_UNKNOWN.
 */
static __always_inline enum bl_verdict bl_flow_begin(struct BL_CONTEXT *context,
						     const struct bl_packet *packet,
						     enum bl_hook hook, enum bl_former former,
						     struct bl_path *path)
{
	struct bl_plan plan = {.former = former};
	enum bl_verdict verdict;

	if (bl_flow_only_masquerades(packet, hook)) {
		verdict = bl_masquerade_plan(packet, hook, &plan);
	} else {
		verdict = bl_plan_balance(context, packet, hook, &plan);
		if (verdict == BL_VERDICT_PASSES && hook != BL_HOOK_EGRESS &&
		    former != BL_FORMER_UNKNOWN && bl_flow_crosses(packet, &plan)) {
			plan.client_device = bl_client_device(packet, hook);
			verdict = BL_VERDICT_TRANSLATED;
		}
	}
	if (verdict != BL_VERDICT_TRANSLATED)
		return verdict;
	verdict = bl_plan_begin(context, packet, hook, &plan, path);
	if (verdict != BL_VERDICT_TRANSLATED) {
		if (unlikely(plan.counted))
			bl_active_drop(plan.ref.id, plan.ref.generation, BL_ACTIVE_FLOWS);
		return verdict;
	}
	path->back = bl_path_back(packet, hook, plan.device, path);
	return verdict;
}

/*
 * Whether the source port of a flow, by the bits of either entry, may be in use by another
 * connection: TCP takes it without a lookup, and the backend has not confirmed it yet.
 */
static __always_inline bool bl_flow_disputable(const struct bl_packet *packet, __u8 bits)
{
	return bl_flow_state(bits) == BL_FLOW_NEW && bits & BL_FLOW_SNAT &&
	       packet->key.proto == IPPROTO_TCP;
}

/* What is known of the flow that a client's packet may replace. */
static __always_inline enum bl_former bl_flow_former(const struct bl_packet *packet,
						     const struct bl_flow_forward *forward)
{
	return bl_flow_disputable(packet, forward->bits) ||
			       bl_flow_state(forward->bits) == BL_FLOW_CLASHED
		       ? BL_FORMER_CLASHED
		       : BL_FORMER_OVER;
}

/*
 * Whether a SYN begins the next connection after one that only one side has closed, as far as is
 * known here. Its sequence number is then beyond that one's (RFC 1122, 4.2.2.13), and the other
 * side, if its FIN was missed, sends nothing. With the tunnel that is not seen. Any other SYN stays
 * in the flow: an end that still has the connection answers within it, and the client resets it.
 */
static __always_inline bool bl_flow_half_closed_over(const struct bl_packet *packet,
						     const struct bl_flow_forward *forward,
						     __u32 now)
{
	__u32 known = forward->progress.tcp.client_seq;

	if (packet->key.proto != IPPROTO_TCP)
		return true;
	return (!known || (__s32)(packet->seq - known) > 0) &&
	       (bl_flow_leaves_by_tunnel(forward) || bl_flow_age(now, forward->used));
}

/*
 * Whether a client's SYN begins a new flow although there is an entry. The flow is over; or
 * its source port may be in use by another connection: no reply has come for a second, after
 * which a client repeats its SYN. That connection need not be known here: this node may also be
 * a client at the backend's node, whose Beeline shows the backend the same address and takes
 * the replies for those to that client. Or the flow leaves by the tunnel and may have ended by
 * a reset that was not seen here.
 */
static __noinline bool bl_flow_port_reused(const struct bl_packet *packet,
					   const struct bl_flow_forward *forward, __u32 now)
{
	enum bl_flow_state state = bl_flow_state(forward->bits);

	if (state >= BL_FLOW_CLOSED)
		return true;
	return (bl_flow_disputable(packet, forward->bits) && forward->used != now) ||
	       (state >= BL_FLOW_CLIENT_CLOSING &&
		bl_flow_half_closed_over(packet, forward, now)) ||
	       (bl_flow_leaves_by_tunnel(forward) && !bl_flow_backend(forward));
}

/*
 * Whether a client's packet begins a new flow although there is an entry: a UDP
 * flow whose backend serves no more, or the next connection of TCP or SCTP from
 * the same port. Of tunnel traffic the ingress node decides, which has selected the
 * backend.
 */
static __always_inline bool bl_flow_reused(const struct bl_packet *packet,
					   const struct bl_flow_forward *forward, __u32 now)
{
	if (packet->key.proto == IPPROTO_UDP) {
		if (bl_flow_comes_by_tunnel(forward))
			return bl_flow_age(now, forward->progress.tunnel_second) >
			       BL_TUNNEL_SECONDS;
		return !bl_flow_serving(forward) &&
		       !bl_addr_equal(&forward->backend, &packet->key.dst); /* the client's own */
	}
	return (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK)) == BL_TCP_SYN &&
	       bl_flow_port_reused(packet, forward, now);
}

/* The device that the client of a flow is behind, as the reply entry has it. */
static __always_inline __u8 bl_flow_client_device(const struct bl_packet *packet, enum bl_hook hook,
						  const struct bl_flow_forward *forward)
{
	return forward->device == BL_DEVICE_HAIRPIN ? BL_DEVICE_HAIRPIN
						    : bl_client_device(packet, hook);
}

/*
 * Whether the frontend of a flow leads to another Service by now, as after the address or the
 * NodePort was moved to it. One that leads nowhere leaves its flows alone. Not of tunnel traffic,
 * of which the ingress node decides.
 */
__noinline bool bl_flow_handed_over(const struct bl_flow_key *key,
				    const struct bl_flow_forward *forward)
{
	const struct bl_backend_entry *backend;

	if (!key || !forward || bl_flow_comes_by_tunnel(forward))
		return false;
	backend = bl_flow_serving(forward);
	return backend && bl_frontend_owner(key, backend->service) != backend->service;
}

/*
 * Once a second, see bl_flow_keep_reply. False also for a flow of UDP whose frontend leads to
 * another Service.
 */
__noinline bool bl_flow_touch_reply(const struct bl_packet *packet, enum bl_hook hook,
				    struct bl_flow_forward *forward, const union bl_addr *source,
				    __u32 now)
{
	if (!packet || !forward || !source)
		return false;
	if (packet->key.proto == IPPROTO_UDP && bl_flow_handed_over(&packet->key, forward))
		return false;
	if (!bl_flow_leaves_by_tunnel(forward))
		bl_peers_note(&forward->backend, source, now);
	return bl_flow_keep_reply(&packet->key, forward, source,
				  bl_flow_client_device(packet, hook, forward), now);
}

/* Fill in the source that the backend of a known flow sees. False when this node has none for it. */
static __always_inline bool bl_flow_source(const struct bl_packet *packet, enum bl_hook hook,
					   const struct bl_flow_forward *forward,
					   union bl_addr *source)
{
	*source = packet->key.src;
	if (forward->bits & BL_FLOW_SNAT)
		return bl_flow_snat_source(forward, packet->ipv4, source);
	if (hook == BL_HOOK_POD_INGRESS && forward->device != BL_DEVICE_MASQUERADE)
		bl_pod_source(packet, &forward->backend, source);
	return true;
}

/*
 * Whether a client's packet goes on in a known flow, of which the backend sees @source. Else the flow
 * is over, and removed. What @forward points to need not be the entry in the table.
 */
static __always_inline bool bl_flow_goes_on(const struct bl_packet *packet, enum bl_hook hook,
					    struct bl_flow_forward *forward,
					    const union bl_addr *source, __u32 now)
{
	if ((packet->tcp_flags & BL_TCP_SYN && packet->key.proto == IPPROTO_TCP &&
	     bl_outlier_used() && bl_outlier_client(packet, forward)) ||
	    bl_flow_reused(packet, forward, now) ||
	    (forward->used != now && !bl_flow_touch_reply(packet, hook, forward, source, now))) {
		bl_flow_remove(&packet->key, forward, source);
		return false;
	}
	return true;
}

/* A client's packet of a known flow; BL_VERDICT_UNKNOWN when the flow is over. */
static __always_inline enum bl_verdict bl_flow_client(const struct bl_packet *packet,
						      enum bl_hook hook,
						      struct bl_flow_forward *forward,
						      struct bl_path *path)
{
	union bl_addr *source = &path->to.src;

	if (!bl_flow_source(packet, hook, forward, source))
		return BL_VERDICT_DROPPED;
	if (!bl_flow_goes_on(packet, hook, forward, source, bl_flow_now()))
		return BL_VERDICT_UNKNOWN;
	bl_flow_track(&packet->key, forward, packet, true);
	bl_path_to_backend(forward, path);
	if (unlikely(forward->bits & BL_FLOW_OVERFLOW) && bl_flow_established(forward->bits))
		bl_flow_settle(&packet->key, forward, source,
			       bl_flow_client_device(packet, hook, forward));
	path->back = bl_path_back(packet, hook, forward->device, path);
	return BL_VERDICT_TRANSLATED;
}

/*
 * Whether a reply is translated at this hook: a pod's where it reaches the pod, or,
 * when the pod answered itself and is not masqueraded, where it left it; one to this node's own
 * address where it comes in; one of a hairpin flow where it would leave;
 * others at the first device that faces the outside.
 */
static __always_inline bool bl_flow_reply_here(const struct bl_packet *packet,
					       const struct bl_flow_reply *reply, enum bl_hook hook)
{
	bool pod = reply->bits & BL_FLOW_POD;
	bool itself = pod && reply->device != BL_DEVICE_MASQUERADE &&
		      bl_addr_equal(&reply->client, &packet->key.src);

	if (reply->device == BL_DEVICE_HAIRPIN)
		return hook == BL_HOOK_EGRESS;
	switch (hook) {
	case BL_HOOK_POD_INGRESS:
		return itself || reply->bits & BL_FLOW_SNAT;
	case BL_HOOK_BACKEND_INGRESS:
		return reply->bits & BL_FLOW_SNAT;
	case BL_HOOK_POD_EGRESS:
		return pod && !itself;
	default:
		return !pod;
	}
}

/* A search in a set for the backend with an address. */
struct bl_backend_search {
	union bl_addr addr BL_ALIGNED;
	__u32 first; /* slot */
	__u32 id; /* ~0: not found */
	__be16 port;
};

/* Callback of bpf_loop: look at one slot. Returns 1 to stop. */
static long bl_backend_look(__u32 index, void *arg)
{
	struct bl_backend_search *search = arg;
	const __u32 *id = bl_slot_lookup(search->first + index);
	const struct bl_backend_entry *backend = id ? bl_backend_lookup(*id) : NULL;

	if (!backend || backend->port != search->port ||
	    !bl_addr_equal(&backend->addr, &search->addr))
		return 0;
	search->id = *id;
	return 1;
}

enum bl_backend_search_limits {
	BL_BACKEND_SEARCH_SLOTS = 1024, /* of a set; of more, a backend is not found */
};

/*
 * Fill in the backend of a flow whose forward entry is rebuilt from the reply entry, so that
 * a UDP flow keeps it.
 */
static __noinline void bl_flow_find_backend(const struct bl_flow_key *forward_key,
					    struct bl_flow_forward *forward)
{
	struct bl_backend_search search = {
		.addr = forward->backend, .port = forward->backend_port, .id = ~0U};
	struct bl_frontend_entry frontend = bl_frontend_of(forward_key);
	const struct bl_backend_entry *backend;
	const struct bl_service_entry *service;
	__u64 set;

	forward->backend_id = ~0U;
	service = frontend.kind == BL_FRONTEND_NONE ? NULL : bl_service_lookup(frontend.service);
	if (!service)
		return;
	/* The local set is a part of the cluster's, unless that is narrowed by hints. */
	for (int local = 0; local < 2 && search.id == ~0U; local++) {
		set = local ? *(const volatile __u64 *)&service->local
			    : *(const volatile __u64 *)&service->cluster;
		search.first = bl_set_first(set);
		if (bl_set_kind(set) == BL_SET_BACKENDS &&
		    bl_set_count(set) <= BL_BACKEND_SEARCH_SLOTS)
			bpf_loop(bl_set_count(set), bl_backend_look, &search, 0);
	}
	backend = bl_backend_lookup(search.id);
	if (!backend)
		return;
	forward->backend_id = search.id;
	forward->generation = backend->generation;
}

/*
 * The device by which packets of a flow leave, by its reply, which has come in by @ifindex: mostly
 * that one. With SNAT it is the one whose address the reply is for, which the route tells then; 0
 * where that is not known, and BL_DEVICE_ROUTED where the reply comes in by none of the devices.
 */
static __noinline __u8 bl_flow_restore_device(struct BL_CONTEXT *context,
					      const struct bl_flow_key *reply_key,
					      const struct bl_flow_reply *reply, __u32 ifindex)
{
	const __u32 *id = bpf_map_lookup_elem(&bl_device_id, &ifindex);
	bool ipv4 = bl_addr_is_ipv4(&reply_key->dst);
	const struct bl_device_entry *client;
	__u8 other;

	if (!id)
		return reply->bits & BL_FLOW_SNAT ? BL_DEVICE_ROUTED : 0;
	if (!(reply->bits & BL_FLOW_SNAT) || bl_device_sent(*id, reply_key, ipv4))
		return *id;
	client = bl_device_lookup(reply->device);
	other = bl_device_of(bl_route(context, client ? client->ifindex : ifindex, &reply->client,
				      &reply_key->src, ipv4));
	return bl_device_sent(other, reply_key, ipv4) ? other : 0;
}

/*
 * Rebuild the forward entry of a flow from a reply. @ifindex is the device that the reply has come in
 * by, 0 when the stack or a route decides where the backend is.
 */
static __noinline void bl_flow_restore(struct BL_CONTEXT *context,
				       const struct bl_flow_key *reply_key,
				       const struct bl_flow_reply *reply, __u32 ifindex, __u32 now)
{
	struct bl_flow_work *work = bl_flow_work_lookup();
	struct bl_flow_forward *fresh;
	struct bl_flow_key key;

	if (!work)
		return;
	fresh = &work->forward.forward;
	__builtin_memset(fresh, 0, sizeof(*fresh));
	bl_flow_forward_key(reply_key, reply, &key);
	fresh->backend = reply_key->src;
	fresh->backend_port = reply_key->src_port;
	fresh->source.port = reply_key->dst_port;
	fresh->used = now;
	fresh->bits = reply->bits & BL_FLOW_OF_BOTH;
	bl_flow_set_state(&fresh->bits, reply->bits & BL_FLOW_OVERFLOW ? BL_FLOW_SYN_RECEIVED
								       : BL_FLOW_ESTABLISHED);
	bl_flow_find_backend(&key, fresh);
	if (reply->device == BL_DEVICE_HAIRPIN)
		fresh->device = BL_DEVICE_HAIRPIN;
	else if (reply->device == BL_DEVICE_MASQUERADE && !bl_reply_masquerades(reply))
		fresh->device = BL_DEVICE_MASQUERADE;
	else if (!(reply->bits & BL_FLOW_TUNNEL))
		fresh->device = bl_flow_restore_device(context, reply_key, reply, ifindex);
	/* Rather than with another source, the client's next packet is to leave by a new flow. */
	if (fresh->device || !(reply->bits & BL_FLOW_SNAT) || reply->bits & BL_FLOW_TUNNEL)
		bl_flow_claim(&key, &work->forward);
}

/*
 * Update the forward entry from a reply: once a second, and whenever the connection changes
 * its state. False when the packet is none of the flow: that is over, or one of UDP, and the host
 * has taken its source port since.
 */
__noinline bool bl_flow_note(struct BL_CONTEXT *context, const struct bl_packet *packet,
			     struct bl_flow_reply *reply, __u32 ifindex, __u32 now)
{
	struct bl_flow_entry *flow;
	struct bl_flow_key key;
	bool snat, owns;

	if (!packet || !reply)
		return false;
	snat = reply->bits & BL_FLOW_SNAT;
	reply->touched = now;
	bl_peers_note(&packet->key.src, &packet->key.dst, now);
	bl_flow_forward_key(&packet->key, reply, &key);
	flow = bl_flow_find(&key);
	owns = bl_flow_owns_forward(&packet->key, flow);
	if (owns && bl_flow_state(flow->forward.bits) < BL_FLOW_CLOSED &&
	    !(snat && packet->key.proto == IPPROTO_UDP &&
	      bl_port_connected(context, &packet->key, packet->ipv4))) {
		/* Else the client's packets of this second would not look: bl_flow_touch_reply. */
		if (packet->key.proto != IPPROTO_UDP || !bl_flow_handed_over(&key, &flow->forward))
			flow->forward.used = now;
		bl_flow_track(&key, &flow->forward, packet, false);
		return true;
	}
	if (!flow) {
		bl_flow_restore(context, &packet->key, reply, ifindex, now);
		return true;
	}
	if (!snat || !bl_port_taken(context, &packet->key, packet->ipv4))
		return true;
	if (owns) {
		bl_flow_remove(&key, &flow->forward, &packet->key.dst);
	} else {
		key = packet->key;
		bl_flow_delete(&key, reply->bits);
	}
	return false;
}

/*
 * Whether the first packet of the backend is no answer to the flow's SYN, but belongs to another
 * connection that had the source port before. A backend that knows a connection from there answers
 * within that one; else with SYN+ACK, or a reset. With SNAT the host's sockets and conntrack are
 * looked up; else the client's next SYN gets another port.
 */
__noinline bool bl_flow_clashes(struct BL_CONTEXT *context, const struct bl_packet *packet,
				struct bl_flow_reply *reply)
{
	struct bl_flow_entry *flow;
	struct bl_flow_key key;

	if (!packet || !reply)
		return false;
	if (packet->key.proto != IPPROTO_TCP ||
	    (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK)) == (BL_TCP_SYN | BL_TCP_ACK))
		return false;
	if (reply->bits & BL_FLOW_SNAT)
		return bl_port_taken(context, &packet->key, packet->ipv4);
	if (packet->tcp_flags & (BL_TCP_RST | BL_TCP_FIN))
		return false;
	bl_flow_set_state(&reply->bits, BL_FLOW_CLASHED);
	bl_flow_forward_key(&packet->key, reply, &key);
	flow = bl_flow_find(&key);
	if (bl_flow_owns_forward(&packet->key, flow) && !bl_flow_established(flow->forward.bits))
		bl_flow_enter(&flow->forward, BL_FLOW_CLASHED);
	return true;
}

/*
 * The device, as of bl_flow_reply_device, of a reply that the stack has led to another device than
 * the client's packets come in by: by the backend's address. The rules of routing may have another
 * route for the Service's, as where each address may leave by its own network card alone. What has a
 * mark goes where that has led it.
 */
static __noinline __u32 bl_flow_reply_route(struct BL_CONTEXT *context,
					    const struct bl_packet *packet,
					    const struct bl_flow_reply *reply)
{
	__u32 ifindex;

	if (bl_context_mark(context))
		return 0;
	ifindex = bl_route(context, packet->ifindex, &reply->service, &reply->client, packet->ipv4);
	return ifindex && ifindex != packet->ifindex ? bl_device_of(ifindex) : 0;
}

/* Index in bl_device of the device by which a reply leaves; 0 is the host's stack. */
static __always_inline __u32 bl_flow_reply_device(struct BL_CONTEXT *context,
						  const struct bl_packet *packet,
						  const struct bl_flow_reply *reply,
						  enum bl_hook hook)
{
	__u32 device = bl_flow_device((const struct bl_flow_entry *)reply);

	if (hook != BL_HOOK_EGRESS || device == BL_DEVICE_HAIRPIN)
		return device;
	if (!device || device == BL_DEVICE_ROUTED || reply->bits & BL_FLOW_SNAT ||
	    device == bl_device_of(packet->ifindex))
		return 0;
	return bl_flow_reply_route(context, packet, reply);
}

/* A backend's packet of a known flow that is translated at this hook. */
static __always_inline enum bl_verdict bl_flow_reply(struct BL_CONTEXT *context,
						     const struct bl_packet *packet,
						     enum bl_hook hook, struct bl_flow_reply *reply,
						     struct bl_path *path)
{
	__u32 ifindex = hook == BL_HOOK_INGRESS ? packet->ifindex : 0;
	enum bl_flow_state state = bl_flow_state(reply->bits);
	__u32 now = bl_flow_now();

	if (unlikely(state == BL_FLOW_NEW || state == BL_FLOW_CLASHED)) {
		if (bl_flow_clashes(context, packet, reply))
			return BL_VERDICT_PASSES;
		if (packet->key.proto == IPPROTO_TCP && bl_outlier_used() &&
		    bl_outlier_reply(packet, reply))
			return BL_VERDICT_DROPPED;
		bl_flow_set_state(&reply->bits, BL_FLOW_SYN_RECEIVED);
	}
	if (reply->touched != (__u16)now) {
		if (ifindex && reply->bits & BL_FLOW_SNAT && reply->device != BL_DEVICE_HAIRPIN &&
		    reply->device != BL_DEVICE_MASQUERADE)
			bl_route_back(context, packet, reply);
		state = BL_FLOW_NEW;
	}
	if ((state == BL_FLOW_NEW || packet->tcp_flags & (BL_TCP_SYN | BL_TCP_FIN | BL_TCP_RST)) &&
	    !bl_flow_note(context, packet, reply, ifindex, now))
		return BL_VERDICT_PASSES;
	path->to.src = reply->service;
	path->to.dst = reply->client;
	path->to.src_port = reply->service_port;
	path->to.dst_port = reply->client_port;
	path->device = bl_flow_reply_device(context, packet, reply, hook);
	path->back = hook == BL_HOOK_POD_INGRESS && reply->device != BL_DEVICE_MASQUERADE;
	path->reply = true;
	path->clamp = bl_tunnel_clamp && reply->bits & BL_FLOW_TUNNEL &&
		      packet->tcp_flags & BL_TCP_SYN && packet->key.proto == IPPROTO_TCP;
	return BL_VERDICT_TRANSLATED;
}

/*
 * Whether a TCP packet without a flow belongs to a connection that is sent on by the
 * ring of its Service: the flow was another node's, or has been forgotten.
 */
__noinline bool bl_flow_has_ring(const struct bl_packet *packet)
{
	struct bl_client client = {.packet = packet, .now = bl_flow_now()};
	const struct bl_service_entry *service;
	struct bl_frontend_entry frontend;
	struct bl_dst dst;

	if (!packet)
		return false;
	dst = bl_packet_dst(packet);
	frontend = bl_frontend_find(&client, &dst);
	if (frontend.kind == BL_FRONTEND_NONE)
		return false;
	service = bl_service_lookup(frontend.service);
	return service && service->algorithm == BL_ALGORITHM_MAGLEV;
}

/* Whether a client's packet that has no flow begins one. */
static __always_inline bool bl_flow_begins(const struct bl_packet *packet)
{
	if (packet->key.proto == IPPROTO_UDP || bl_flow_opens(packet))
		return true;
	return packet->key.proto == IPPROTO_TCP &&
	       (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK | BL_TCP_RST)) == BL_TCP_ACK &&
	       bl_filter_test_rings() && bl_flow_has_ring(packet);
}

/*
 * The verdict of @packet; when it is translated, @path says how it is sent on. When @packet is
 * left with key.masquerade, it gets another source where it is, and with any packet of the
 * connection, not with a SYN alone, may that flow begin: from the same port again if it can, so that
 * a connection goes on when its flow has been evicted.
 *
 * With BL_SYN_FIRST a SYN begins a flow without a lookup, which would find nothing for a new
 * connection and costs a quarter of storing the flow.
 */
static __always_inline enum bl_verdict bl_decide(struct BL_CONTEXT *context,
						 struct bl_packet *packet, enum bl_hook hook,
						 struct bl_path *path)
{
	enum bl_former former = BL_FORMER_NONE;
	enum bl_verdict verdict = BL_VERDICT_UNKNOWN;
	struct bl_flow_entry *flow;

	if (BL_SYN_FIRST && bl_flow_opens(packet)) {
		verdict = bl_flow_begin(context, packet, hook, BL_FORMER_UNKNOWN, path);
		if (verdict != BL_VERDICT_UNKNOWN && verdict != BL_VERDICT_PASSES)
			return verdict;
	}
	flow = bl_flow_lookup(&packet->key);
	if (flow && bl_flow_bits(flow) & BL_FLOW_IS_REPLY)
		return bl_flow_reply_here(packet, &flow->reply, hook)
			       ? bl_flow_reply(context, packet, hook, &flow->reply, path)
			       : BL_VERDICT_PASSES;
	if (bl_hook_leaves(hook) && !flow && bl_masquerade_used()) {
		packet->key.masquerade = 1;
		flow = bl_flow_find(&packet->key);
		if (!flow && !bl_masquerades(packet))
			packet->key.masquerade = 0;
	}
	if (bl_hook_for_replies(hook) && !packet->key.masquerade)
		return BL_VERDICT_PASSES;
	if (!flow && verdict == BL_VERDICT_PASSES)
		return BL_VERDICT_PASSES;
	if (flow) {
		/* It began where it left the node, before this device was served. */
		if (hook == BL_HOOK_POD_INGRESS && flow->forward.device == BL_DEVICE_HAIRPIN)
			return BL_VERDICT_PASSES;
		former = bl_flow_former(packet, &flow->forward);
		verdict = bl_flow_client(packet, hook, &flow->forward, path);
		if (verdict != BL_VERDICT_UNKNOWN)
			return verdict;
	}
	if (bl_flow_only_masquerades(packet, hook) ? !bl_masquerades(packet)
						   : !bl_flow_begins(packet))
		return BL_VERDICT_PASSES; /* of a connection that Beeline did not set up */
	verdict = bl_flow_begin(context, packet, hook, former, path);
	/* Resets are made for SYNs: the stack answers what is within a connection. */
	if (verdict == BL_VERDICT_REFUSED && packet->key.proto == IPPROTO_TCP &&
	    !(packet->tcp_flags & BL_TCP_SYN))
		return BL_VERDICT_PASSES;
	return verdict;
}
