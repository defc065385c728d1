// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What the first packet of a connection would meet at tc ingress of a device, in whose context the
 * command makes the test run; see explain.h.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* For the headers that do not mind which kind of program includes them. */
#define BL_CONTEXT __sk_buff
#define bl_context_ct_lookup bpf_skb_ct_lookup
#define bl_context_mark(context) ((context)->mark)
#define BL_ANSWERS true
#define BL_EVENT_HOOK BL_EVENT_AT_TC
#define BL_SYN_FIRST false
/* The flow table of the node: bl_flow is a copy without entries. */
#define BL_KEEPS_FORMER true

#include <beeline/explain.h>
#include <beeline/pipeline.h>

/* The pinned bl_client and bl_new_client; those names are the copies. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_client_key);
	__type(value, struct bl_affinity_entry);
} bl_known_client SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct bl_client_key);
	__type(value, struct bl_affinity_entry);
} bl_known_fresh SEC(".maps");

/* The packet that is asked about: a SYN, or a datagram. */
static __always_inline void bl_explain_make(struct __sk_buff *skb,
					    const struct bl_explain_query *query,
					    struct bl_packet *packet)
{
	packet->key.src = query->src;
	packet->key.dst = query->dst;
	packet->key.src_port = query->src_port;
	packet->key.dst_port = query->dst_port;
	packet->key.proto = query->proto;
	packet->ipv4 = query->ipv4;
	packet->ifindex = skb->ifindex;
	packet->leaves = query->hook == BL_HOOK_EGRESS;
	packet->tcp_flags = query->proto == IPPROTO_UDP ? 0 : BL_TCP_SYN;
	packet->seq = 1;
	packet->ttl = 64;
	packet->part = BL_PACKET_WHOLE;
}

/* Note what the packet's flow has. */
static __always_inline void bl_explain_flow(struct bl_explain_entry *explain,
					    const struct bl_flow_forward *forward)
{
	explain->steps |= BL_EXPLAIN_FLOW;
	explain->backend.id = forward->backend_id;
	explain->backend.generation = forward->generation;
	explain->to_dst = forward->backend;
	explain->to_dst_port = forward->backend_port;
	explain->device = forward->device;
	explain->flow_bits = forward->bits;
	if (bl_flow_leaves_by_tunnel(forward))
		explain->node = forward->source.node;
	else
		explain->to_src_port = forward->source.port;
}

/* Note the client's traffic policy and set, and what is remembered of it. */
static __always_inline void bl_explain_client(struct bl_explain_entry *explain,
					      struct bl_client *client, enum bl_hook hook,
					      const struct bl_target *target)
{
	struct bl_client_key key = {
		.client = client->packet->key.src,
		.service = target->frontend.service,
	};

	client->internal =
		hook != BL_HOOK_INGRESS ||
		bl_packet_internal(target->frontend, bl_client_device(client->packet, hook));
	bl_explain_set(explain, client, target);
	bl_explain_know_stat(target->frontend.service);
	if (!bl_explain_know_client(explain, &bl_known_client, &bl_client, &key, target))
		bl_explain_know_client(explain, &bl_known_fresh, &bl_new_client, &key, target);
}

/* Whether the packet goes on in a flow that is there. */
static __always_inline bool bl_explain_goes_on(const struct bl_explain_entry *explain)
{
	return (explain->steps & (BL_EXPLAIN_KNOWN_FLOW | BL_EXPLAIN_FLOW_OVER)) ==
	       BL_EXPLAIN_KNOWN_FLOW;
}

/*
 * Find the Service of the packet, and what its flow begins with if it begins one. A function for the
 * stack it takes.
 */
__noinline int bl_explain_find(const struct bl_packet *packet, enum bl_hook hook)
{
	struct bl_client client = {.packet = packet, .now = bl_flow_now()};
	struct bl_explain_entry *explain = bl_value(bl_explain);
	struct bl_target target;
	struct bl_dst dst;

	if (!packet)
		return 0;
	dst = bl_packet_dst(packet);
	explain->reason = bl_service_find(&client, &dst, &target);
	explain->frontend = target.frontend;
	if (bl_explain_goes_on(explain))
		return 0;
	if (explain->reason == BL_REASON_COUNT && target.stat)
		bl_explain_client(explain, &client, hook, &target);
	return 0;
}

/* Count a packet that is translated, and note whether it goes back to its pod. */
static __always_inline void bl_explain_sent(struct bl_explain_entry *explain,
					    const struct bl_path *path)
{
	bl_count(path->tunnel ? BL_REASON_TUNNEL_SENT : BL_REASON_PACKET_TRANSLATED);
	if (path->back)
		explain->steps |= BL_EXPLAIN_BACK;
}

/* Begin the flow of the packet, in the copies, and give the answer. */
static __always_inline void bl_explain_begin(struct __sk_buff *skb, struct bl_packet *packet,
					     enum bl_hook hook, enum bl_former former,
					     struct bl_explain_entry *explain)
{
	const struct bl_flow_entry *flow;
	struct bl_path path = {};

	explain->verdict = bl_flow_begin(skb, packet, hook, former, &path);
	if (explain->verdict != BL_VERDICT_TRANSLATED)
		return;
	bl_explain_sent(explain, &path);
	flow = bl_flow_find(&packet->key);
	if (flow)
		bl_explain_flow(explain, &flow->forward);
	explain->to_src = path.to.src;
}

/* Give the answer for a packet of a known flow, by a copy of its entry, unless the flow is over. */
static __always_inline void bl_explain_go_on(const struct bl_packet *packet, enum bl_hook hook,
					     struct bl_explain_entry *explain,
					     struct bl_flow_forward *forward)
{
	struct bl_path path = {};

	/* It is passed by at the pod's device, and known where it leaves. */
	if (forward->device == BL_DEVICE_HAIRPIN)
		hook = BL_HOOK_EGRESS;
	explain->steps |= BL_EXPLAIN_KNOWN_FLOW;
	explain->verdict = BL_VERDICT_DROPPED;
	if (!bl_flow_source(packet, hook, forward, &path.to.src))
		return;
	if (!bl_flow_goes_on(packet, hook, forward, &path.to.src, bl_flow_now())) {
		explain->steps |= BL_EXPLAIN_FLOW_OVER;
		return;
	}
	explain->verdict = BL_VERDICT_TRANSLATED;
	bl_path_to_backend(forward, &path);
	path.back = bl_path_back(packet, hook, forward->device, &path);
	bl_explain_sent(explain, &path);
	bl_explain_flow(explain, forward);
	explain->to_src = path.to.src;
}

/*
 * Give the answer for the packet of a flow that is there; see bl_explain_goes_on. What is known of that
 * flow when another one begins. A function for the stack it takes, as the next one.
 */
__noinline enum bl_former bl_explain_known(struct __sk_buff *skb)
{
	struct bl_explain_entry *explain = bl_value(bl_explain);
	struct bl_flow_forward forward;
	const struct bl_flow_entry *flow;
	struct bl_packet packet = {};
	enum bl_former former;

	bl_explain_make(skb, &explain->query, &packet);
	flow = bl_flow_find(&packet.key);
	if (!flow || bl_flow_bits(flow) & BL_FLOW_IS_REPLY)
		return BL_FORMER_NONE;
	forward = flow->forward;
	/* A new connection: its number is beyond those of the flow. */
	if (packet.key.proto == IPPROTO_TCP)
		packet.seq = forward.progress.tcp.client_seq + 1;
	former = bl_flow_former(&packet, &forward);
	bl_explain_go_on(&packet, explain->query.hook, explain, &forward);
	return former;
}

static __always_inline void bl_explain_hook(struct __sk_buff *skb, struct bl_explain_entry *explain,
					    enum bl_hook hook, enum bl_former former)
{
	struct bl_packet packet = {};

	bl_explain_make(skb, &explain->query, &packet);
	bl_explain_find(&packet, hook);
	if (!bl_explain_goes_on(explain))
		bl_explain_begin(skb, &packet, hook, former, explain);
}

/* Find the Service, and begin a flow unless the packet has one. */
__noinline int bl_explain_first(struct __sk_buff *skb, enum bl_former former)
{
	struct bl_explain_entry *explain = bl_value(bl_explain);

	if (explain->query.hook == BL_HOOK_POD_INGRESS)
		bl_explain_hook(skb, explain, BL_HOOK_POD_INGRESS, former);
	else if (explain->query.hook == BL_HOOK_EGRESS)
		bl_explain_hook(skb, explain, BL_HOOK_EGRESS, former);
	else
		bl_explain_hook(skb, explain, BL_HOOK_INGRESS, former);
	return 0;
}

/* Note the source that a masqueraded packet gets as it leaves the host's stack. */
__noinline int bl_explain_masquerade(struct __sk_buff *skb)
{
	struct bl_explain_entry *explain = bl_value(bl_explain);
	const struct bl_flow_entry *flow;
	struct bl_packet packet = {};
	struct bl_path path = {};
	enum bl_hook hook;

	bl_explain_make(skb, &explain->query, &packet);
	packet.key.src = explain->to_src;
	packet.key.dst = explain->to_dst;
	packet.key.src_port = explain->to_src_port;
	packet.key.dst_port = explain->to_dst_port;
	packet.key.masquerade = 1;
	packet.ifindex = bl_route(skb, skb->ifindex, &packet.key.src, &packet.key.dst, packet.ipv4);
	if (!packet.ifindex)
		return 0; /* a process of this node, which sees the client */
	flow = bl_flow_find(&packet.key);
	if (!flow) {
		hook = bl_device_of(packet.ifindex) ? BL_HOOK_EGRESS : BL_HOOK_POD_EGRESS;
		explain->verdict = bl_flow_begin(skb, &packet, hook, BL_FORMER_NONE, &path);
		flow = bl_flow_find(&packet.key);
	}
	if (!flow)
		return 0;
	explain->flow_bits |= BL_FLOW_SNAT;
	explain->to_src_port = flow->forward.source.port;
	bl_flow_snat_source(&flow->forward, packet.ipv4, &explain->to_src);
	return 0;
}

SEC("tc")
int bl_explain_packet(struct __sk_buff *skb)
{
	struct bl_explain_entry *explain = bl_value(bl_explain);

	explain->reason = BL_REASON_COUNT;
	explain->verdict = BL_VERDICT_PASSES;
	bl_explain_first(skb, bl_explain_known(skb));
	if (explain->device == BL_DEVICE_MASQUERADE)
		bl_explain_masquerade(skb);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
