// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Services reached by packets: from clients outside of the node, at the devices
 * that face them. A packet is translated towards the backend at ingress and the
 * reply is translated back at egress of the same device, so whatever looks at
 * packets in between sees one connection with the backend. What goes on to another
 * node gets a source address of this one and leaves at once; its reply is
 * translated back at ingress.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include <beeline/types.h>
#include <beeline/maps.h>
#include <beeline/table.h>
#include <beeline/frontend.h>
#include <beeline/select.h>
#include <beeline/packet.h>
#include <beeline/flow.h>
#include <beeline/answer.h>
#include <beeline/icmp.h>
#include <beeline/fragment.h>
#include <beeline/echo.h>

#define AF_INET 2
#define AF_INET6 10

/* To the next program of the hook, then the stack: the packet is not ours. */
#define BL_TC_PASS TC_ACT_UNSPEC

enum bl_tc_limits {
	BL_TC_PORT_ATTEMPTS = 16,
};

/* Source ports of SNAT, host byte order, both included. */
volatile const __u16 bl_snat_port_min = 61000;
volatile const __u16 bl_snat_port_max = 65535;

/* The hook that runs; a constant of each program. */
enum bl_tc_hook {
	BL_TC_INGRESS, /* of a device that faces clients or other nodes */
	BL_TC_EGRESS,
	BL_TC_POD_INGRESS, /* of the host's side of a pod's device: from the pod */
	BL_TC_POD_EGRESS, /* to the pod */
};

/* What a new flow is going to be. */
struct bl_tc_plan {
	union bl_addr source BL_ALIGNED; /* towards the backend: the client's or this node's */
	union bl_addr backend;
	struct bl_backend_ref ref; /* of the backend */
	__u32 service;
	__be16 port; /* of the backend */
	bool local; /* the backend is of the local set */
	__u8 client_device;
	__u8 device; /* the packet leaves by it; 0 is the host's stack */
	__u8 bits; /* BL_FLOW_SNAT, BL_FLOW_POD */
};

/* The frontend behind the packet's destination, as bl_sock_frontend. */
static __always_inline struct bl_frontend_entry bl_tc_frontend(const struct bl_packet *packet,
							       enum bl_reason *reason)
{
	struct bl_dst dst = {
		.high = ((const __u64 *)&packet->key.dst)[0],
		.low = ((const __u64 *)&packet->key.dst)[1],
		.port = packet->key.dst_port,
		.proto = packet->key.proto,
		.ipv4 = packet->ipv4,
	};
	struct bl_frontend_entry frontend = bl_frontend_get(dst.high, dst.low, dst.tail);

	*reason = BL_REASON_COUNT;
	if (frontend.kind != BL_FRONTEND_NONE && frontend.kind != BL_FRONTEND_NODE_PORT)
		return frontend;
	frontend = bl_node_port_get(&dst);
	if (frontend.kind != BL_FRONTEND_NONE && bl_node_addr_serves(&dst, 0))
		return frontend;
	frontend.kind = BL_FRONTEND_NONE;
	*reason = bl_undeclared(&dst);
	return frontend;
}

/* Whether the packet comes from inside of the cluster. */
static __always_inline bool bl_tc_internal(const struct bl_packet *packet)
{
	struct bl_cidr_key key = {.prefix_len = 128, .addr = packet->key.src};

	return bpf_map_lookup_elem(&bl_local_cidr, &key) != NULL;
}

/* The backend of a new flow to @frontend. */
static __always_inline void bl_tc_select(const struct bl_packet *packet,
					 struct bl_frontend_entry frontend, bool internal,
					 __u32 random, struct bl_choice *choice)
{
	const struct bl_service_entry *service = bl_service_lookup(frontend.service);
	struct bl_client_key key = {.client = packet->key.src, .service = frontend.service};
	__u8 local = internal ? BL_FRONTEND_INTERNAL_LOCAL : BL_FRONTEND_EXTERNAL_LOCAL;
	__u32 member;
	__u64 set;

	choice->backend = NULL;
	choice->reason = BL_REASON_BROKEN_TABLE;
	if (!service)
		return;
	set = bl_service_set(service, frontend.flags & local, &member);
	if (service->affinity)
		*choice = bl_affinity_select(&bl_client, service, &key, frontend.service, set,
					     member, random);
	else
		*choice = bl_set_select(set, random);
	choice->member = member;
}

/*
 * The source of a pod's packet. A pod that is its own backend must not see its own
 * address: it sees the Service's, so that the reply comes back here.
 */
static __always_inline void bl_tc_pod_source(const struct bl_packet *packet,
					     const union bl_addr *backend, union bl_addr *source)
{
	*source = bl_addr_equal(backend, &packet->key.src) ? packet->key.dst : packet->key.src;
}

/*
 * Find out by which device the packet would reach the backend. The device stays 0,
 * which is the host's stack, unless it is one at which replies are translated: the
 * backend is then on another node. With @output the packet is on its way out
 * already and keeps its source.
 */
__noinline int bl_tc_route(struct __sk_buff *skb, const struct bl_packet *packet, bool output,
			   struct bl_tc_plan *plan)
{
	struct bpf_fib_lookup fib = {.ifindex = skb->ifindex};
	const struct bl_device_entry *device;
	const __u32 *id;
	long ret;

	if (!packet || !plan)
		return 0;
	plan->source = packet->key.src;
	if (plan->local)
		return 0;
	if (packet->ipv4) {
		fib.family = AF_INET;
		fib.ipv4_src = packet->key.src.word[3];
		fib.ipv4_dst = plan->backend.word[3];
	} else {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, &packet->key.src, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &plan->backend, sizeof(fib.ipv6_dst));
	}
	ret = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (ret != BPF_FIB_LKUP_RET_SUCCESS && ret != BPF_FIB_LKUP_RET_NO_NEIGH)
		return 0;
	id = bpf_map_lookup_elem(&bl_device_id, &fib.ifindex);
	if (!id)
		return 0;
	device = bl_device_lookup(*id);
	if (!device)
		return 0;
	plan->device = *id;
	if (output)
		return 0;
	plan->bits |= BL_FLOW_SNAT;
	plan->source = bl_device_addr(device, packet->ipv4);
	return 0;
}

/* Whether a socket of this host may get packets of the flow @key. SCTP's are not known. */
static __always_inline bool bl_tc_port_taken(struct __sk_buff *skb, const struct bl_flow_key *key,
					     bool ipv4)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size = ipv4 ? sizeof(tuple.ipv4) : sizeof(tuple.ipv6);
	struct bpf_sock *sk;

	if (key->proto == IPPROTO_SCTP)
		return false;
	if (ipv4) {
		tuple.ipv4.saddr = key->src.word[3];
		tuple.ipv4.daddr = key->dst.word[3];
		tuple.ipv4.sport = key->src_port;
		tuple.ipv4.dport = key->dst_port;
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &key->src, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &key->dst, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = key->src_port;
		tuple.ipv6.dport = key->dst_port;
	}
	if (key->proto == IPPROTO_TCP)
		sk = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		sk = bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/*
 * Insert the reply entry at the first source port that no other flow and no socket
 * of this host uses: the client's own, else one of the SNAT range. The insertion
 * claims the port. False when none was free; else @key is the entry's.
 */
static __always_inline bool bl_tc_claim(struct __sk_buff *skb, const struct bl_packet *packet,
					const struct bl_tc_plan *plan,
					const struct bl_flow_entry *reply,
					struct bl_flow_entry *forward, struct bl_flow_key *key)
{
	__u32 range = bl_snat_port_max - bl_snat_port_min + 1;

	forward->other_port = packet->key.src_port;
	for (int i = 0; i < BL_TC_PORT_ATTEMPTS; i++) {
		bl_flow_reply_key(&packet->key, forward, &plan->source, key);
		if ((!(plan->bits & BL_FLOW_SNAT) || !bl_tc_port_taken(skb, key, packet->ipv4)) &&
		    !bpf_map_update_elem(&bl_flow, key, reply, BPF_NOEXIST))
			return true;
		forward->other_port = bpf_htons(bl_snat_port_min + bpf_get_prandom_u32() % range);
	}
	return false;
}

/* What becomes of a packet. */
enum bl_tc_fate {
	BL_TC_PASSES, /* untouched */
	BL_TC_TRANSLATED, /* by struct bl_tc_way */
	BL_TC_DROPPED,
	BL_TC_REFUSED, /* the client is told */
	BL_TC_UNKNOWN, /* it begins a new flow */
};

/* How a translated packet goes on. */
struct bl_tc_way {
	struct bl_rewrite to BL_ALIGNED;
	__u32 device; /* index in bl_device; 0 is the host's stack */
	bool back; /* to the pod that it came from */
};

/* Refuse or drop a new connection. */
static __always_inline enum bl_tc_fate bl_tc_refuse(enum bl_reason reason)
{
	bl_count(reason);
	return bl_reason_drops(reason) ? BL_TC_DROPPED : BL_TC_REFUSED;
}

/* The way of a client's packet by its flow's forward entry; its source is known. */
static __always_inline void bl_tc_to_backend(const struct bl_flow_entry *forward,
					     struct bl_tc_way *way)
{
	way->to.dst = forward->addr;
	way->to.src_port = forward->other_port;
	way->to.dst_port = forward->port;
	way->device = forward->device;
}

/*
 * Store both entries of a new flow and begin its way. False, with nothing stored, when there was no
 * free source port or no memory.
 */
__noinline bool bl_tc_store(struct __sk_buff *skb, const struct bl_packet *packet,
			    const struct bl_tc_plan *plan, struct bl_tc_way *way)
{
	struct bl_flow_entry forward = {}, reply = {};
	struct bl_flow_key key;
	__u32 now = bl_flow_now();

	if (!packet || !plan || !way)
		return false;
	forward.addr = plan->backend;
	forward.port = plan->port;
	forward.forward.backend = plan->ref;
	forward.forward.used = now;
	forward.forward.service = plan->service;
	forward.touched = now;
	forward.device = plan->device;
	forward.bits = BL_FLOW_NEW | plan->bits;
	bl_flow_make_reply(&packet->key, &forward, plan->client_device, now, &reply);
	if (!bl_tc_claim(skb, packet, plan, &reply, &forward, &key)) {
		bl_count(BL_REASON_NO_SOURCE_PORT);
		return false;
	}
	key = packet->key; /* Linux 6.1 takes keys from the stack only */
	if (!bpf_map_update_elem(&bl_flow, &key, &forward, BPF_ANY)) {
		way->to.src = plan->source;
		bl_tc_to_backend(&forward, way);
		return true;
	}
	bl_flow_reply_key(&packet->key, &forward, &plan->source, &key);
	bpf_map_delete_elem(&bl_flow, &key);
	bl_count(BL_REASON_FLOW_NOT_STORED);
	return false;
}

/* Choose a backend for the first packet of a flow. */
__noinline enum bl_tc_fate bl_tc_balance(struct __sk_buff *skb, const struct bl_packet *packet,
					 enum bl_tc_hook hook, struct bl_tc_plan *plan)
{
	struct bl_service_stat_entry *stat;
	struct bl_frontend_entry frontend;
	struct bl_choice choice;
	enum bl_reason reason;
	__u32 ifindex = skb->ifindex;
	const __u32 *id;

	if (!packet || !plan)
		return BL_TC_DROPPED;
	frontend = bl_tc_frontend(packet, &reason);
	if (frontend.kind == BL_FRONTEND_NONE)
		return reason == BL_REASON_COUNT ? BL_TC_PASSES : bl_tc_refuse(reason);
	stat = bl_service_stat_lookup(frontend.service);
	if (!stat)
		return bl_tc_refuse(BL_REASON_BROKEN_TABLE);
	if (frontend.flags & BL_FRONTEND_SOURCE_RANGES &&
	    !bl_source_in_range(frontend.service, &packet->key.src)) {
		stat->refused++;
		return bl_tc_refuse(BL_REASON_SOURCE_RANGE);
	}
	bl_tc_select(packet, frontend, hook != BL_TC_INGRESS || bl_tc_internal(packet),
		     bl_random(stat, frontend.service), &choice);
	if (!choice.backend) {
		stat->refused++;
		return bl_tc_refuse(choice.reason);
	}
	stat->connections++;
	plan->backend = choice.backend->addr;
	plan->port = choice.backend->port;
	plan->ref = choice.ref;
	plan->local = choice.member == BL_BACKEND_LOCAL;
	plan->service = frontend.service;
	if (hook == BL_TC_INGRESS) {
		id = bpf_map_lookup_elem(&bl_device_id, &ifindex);
		plan->client_device = id ? *id : 0;
	}
	return BL_TC_TRANSLATED;
}

/* The first packet of a flow. */
static __always_inline enum bl_tc_fate bl_tc_new(struct __sk_buff *skb,
						 const struct bl_packet *packet,
						 enum bl_tc_hook hook, struct bl_tc_way *way)
{
	struct bl_tc_plan plan = {};
	enum bl_tc_fate fate = bl_tc_balance(skb, packet, hook, &plan);

	if (fate != BL_TC_TRANSLATED)
		return fate;
	if (hook == BL_TC_POD_INGRESS) {
		plan.bits = BL_FLOW_POD;
		bl_tc_pod_source(packet, &plan.backend, &plan.source);
	} else {
		bl_tc_route(skb, packet, hook == BL_TC_EGRESS, &plan);
		if (hook == BL_TC_EGRESS && !plan.device)
			return BL_TC_PASSES; /* the reply would not come by here */
	}
	if (!bl_tc_store(skb, packet, &plan, way))
		return BL_TC_DROPPED;
	way->back = hook == BL_TC_POD_INGRESS && bl_addr_equal(&way->to.dst, &packet->key.src);
	return BL_TC_TRANSLATED;
}

/* Remove both entries of a flow. */
static __noinline void bl_tc_remove(const struct bl_packet *packet,
				    const struct bl_flow_entry *forward,
				    const union bl_addr *source)
{
	struct bl_flow_key key;

	bl_flow_reply_key(&packet->key, forward, source, &key);
	bpf_map_delete_elem(&bl_flow, &key);
	bpf_map_delete_elem(&bl_flow, &packet->key);
}

/*
 * Whether a client's packet begins a new flow although there is an entry: a UDP
 * flow whose backend has left its sets, or the next connection of TCP or SCTP from
 * the same port.
 */
static __always_inline bool bl_tc_renewed(const struct bl_packet *packet,
					  const struct bl_flow_entry *forward)
{
	if (packet->key.proto != IPPROTO_UDP)
		return (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK)) == BL_TCP_SYN &&
		       bl_flow_get_state(forward) >= BL_FLOW_CLOSING;
	return !bl_backend_recall(forward->forward.backend, forward->forward.service,
				  BL_BACKEND_CLUSTER | BL_BACKEND_LOCAL);
}

/*
 * Keep the reply entry alive beside the forward one: once a second it is looked up,
 * so that neither is evicted before the other, and made again if it is gone.
 */
static __noinline void bl_tc_touch_reply(const struct bl_packet *packet,
					 struct bl_flow_entry *forward, const union bl_addr *source,
					 __u32 ifindex, __u32 now)
{
	struct bl_flow_entry reply = {};
	struct bl_flow_key key;
	const __u32 *id;

	forward->touched = now;
	forward->forward.used = now;
	bl_flow_reply_key(&packet->key, forward, source, &key);
	if (bpf_map_lookup_elem(&bl_flow, &key))
		return;
	id = bpf_map_lookup_elem(&bl_device_id, &ifindex);
	bl_flow_make_reply(&packet->key, forward, id ? *id : 0, now, &reply);
	bpf_map_update_elem(&bl_flow, &key, &reply, BPF_NOEXIST);
}

/* A client's packet of a known flow; BL_TC_UNKNOWN when the flow is over. */
static __always_inline enum bl_tc_fate
bl_tc_client(struct __sk_buff *skb, const struct bl_packet *packet, enum bl_tc_hook hook,
	     struct bl_flow_entry *forward, struct bl_tc_way *way)
{
	union bl_addr *source = &way->to.src;
	const struct bl_device_entry *device;
	__u32 now = bl_flow_now();

	*source = packet->key.src;
	if (hook == BL_TC_POD_INGRESS) {
		bl_tc_pod_source(packet, &forward->addr, source);
	} else if (forward->bits & BL_FLOW_SNAT) {
		device = bl_device_lookup(forward->device);
		if (!device)
			return BL_TC_DROPPED;
		*source = bl_device_addr(device, packet->ipv4);
	}
	if (bl_tc_renewed(packet, forward)) {
		bl_tc_remove(packet, forward, source);
		return BL_TC_UNKNOWN;
	}
	if (forward->touched != (__u16)now)
		bl_tc_touch_reply(packet, forward, source, hook == BL_TC_INGRESS ? skb->ifindex : 0,
				  now);
	bl_flow_track(forward, true, packet->key.proto, packet->tcp_flags);
	bl_tc_to_backend(forward, way);
	way->back = hook == BL_TC_POD_INGRESS && bl_addr_equal(&way->to.dst, &packet->key.src);
	return BL_TC_TRANSLATED;
}

/*
 * Note in the forward entry what a reply tells: once a second, and whenever the
 * connection changes its state. A forward entry that is gone is made again, as of a
 * backend that is in no set. @ifindex is the device that the backend is behind, 0
 * when that is for the stack to know.
 */
static __noinline void bl_tc_touch_forward(const struct bl_packet *packet,
					   struct bl_flow_entry *reply, __u32 ifindex, __u32 now)
{
	struct bl_flow_entry *forward, fresh = {};
	struct bl_flow_key key;
	const __u32 *id;

	reply->touched = now;
	bl_flow_forward_key(&packet->key, reply, &key);
	forward = bpf_map_lookup_elem(&bl_flow, &key);
	if (forward) {
		forward->forward.used = now;
		bl_flow_track(forward, false, packet->key.proto, packet->tcp_flags);
		return;
	}
	fresh.addr = packet->key.src;
	fresh.port = packet->key.src_port;
	fresh.other_port = packet->key.dst_port;
	fresh.forward.backend.id = ~0U;
	fresh.forward.used = now;
	fresh.touched = now;
	fresh.bits = BL_FLOW_ESTABLISHED | (reply->bits & (BL_FLOW_SNAT | BL_FLOW_POD));
	id = bpf_map_lookup_elem(&bl_device_id, &ifindex);
	fresh.device = id ? *id : 0;
	bpf_map_update_elem(&bl_flow, &key, &fresh, BPF_NOEXIST);
}

/*
 * Whether a reply is translated at this hook: a pod's where it reaches the pod, or,
 * when the pod answered itself, where it left it; others at the first device that
 * faces the outside.
 */
static __always_inline bool bl_tc_reply_here(const struct bl_packet *packet,
					     const struct bl_flow_entry *reply,
					     enum bl_tc_hook hook)
{
	bool pod = reply->bits & BL_FLOW_POD;
	bool itself = pod && bl_addr_equal(&reply->client, &packet->key.src);

	switch (hook) {
	case BL_TC_POD_INGRESS:
		return itself;
	case BL_TC_POD_EGRESS:
		return pod && !itself;
	default:
		return !pod;
	}
}

/* A backend's packet of a known flow that is translated at this hook. */
static __always_inline enum bl_tc_fate
bl_tc_reply(struct __sk_buff *skb, const struct bl_packet *packet, enum bl_tc_hook hook,
	    struct bl_flow_entry *reply, struct bl_tc_way *way)
{
	__u32 ifindex = hook == BL_TC_INGRESS ? skb->ifindex : 0;
	__u32 now = bl_flow_now();

	if (reply->touched != (__u16)now ||
	    packet->tcp_flags & (BL_TCP_SYN | BL_TCP_FIN | BL_TCP_RST))
		bl_tc_touch_forward(packet, reply, ifindex, now);
	way->to.src = reply->addr;
	way->to.dst = reply->client;
	way->to.src_port = reply->port;
	way->to.dst_port = reply->other_port;
	way->device = hook == BL_TC_INGRESS ? reply->device : 0;
	way->back = hook == BL_TC_POD_INGRESS;
	return BL_TC_TRANSLATED;
}

/*
 * The checksum of a UDP packet once it is rewritten, where the kernel would get it
 * wrong, which is that of a tunnel; else 0. When the checksum of the packet inside is
 * left to the device, the outer one is complete nevertheless (local checksum offload),
 * but the kernel takes it for the one that is left. It tells so by changing nothing
 * when asked to; a checksum that is left to the device is the pseudo-header's sum.
 */
__noinline __u32 bl_tc_tunnel_checksum(struct __sk_buff *skb, const struct bl_packet *packet,
				       const struct bl_rewrite *to)
{
	const __u32 none[8] = {};
	__u32 at, pseudo, addrs, ports;
	__u16 sum;

	if (!packet || !to)
		return 0;
	if (packet->part != BL_PACKET_WHOLE || skb->gso_size ||
	    bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return 0;
	at = packet->l4 + offsetof(struct udphdr, check);
	if (bpf_skb_load_bytes(skb, at, &sum, sizeof(sum)) || !sum)
		return 0;
	pseudo = bl_csum_change(none, (const __u32 *)&packet->key.src, 8);
	pseudo = (pseudo & 0xffff) + (pseudo >> 16) + bpf_htons(IPPROTO_UDP) +
		 bpf_htons(packet->l4_len);
	if (sum == (__u16)~bl_csum_fold(pseudo) || !bl_packet_unsummed(skb, at))
		return 0;
	addrs = bl_csum_change((const __u32 *)&packet->key.src, (const __u32 *)&to->src, 8);
	ports = bl_csum_change((const __u32 *)&packet->key.src_port, (const __u32 *)&to->src_port,
			       1);
	sum = bl_csum_fold((__u16)~sum + (addrs & 0xffff) + (addrs >> 16) + (ports & 0xffff) +
			   (ports >> 16));
	return sum ? sum : 0xffff;
}

static __always_inline bool bl_tc_rewrite(struct __sk_buff *skb, const struct bl_packet *packet,
					  const struct bl_rewrite *to, bool hop)
{
	__u16 tunnel =
		packet->key.proto == IPPROTO_UDP ? bl_tc_tunnel_checksum(skb, packet, to) : 0;

	if (!(packet->plain ? bl_packet_rewrite_plain(skb, packet, to, hop)
			    : bl_packet_rewrite(skb, packet, to, hop)))
		return false;
	return !tunnel || !bpf_skb_store_bytes(skb, packet->l4 + offsetof(struct udphdr, check),
					       &tunnel, sizeof(tunnel), 0);
}

/* Translate the packet and send it on. */
static __always_inline int bl_tc_go(struct __sk_buff *skb, const struct bl_packet *packet,
				    const struct bl_tc_way *way)
{
	const struct bl_device_entry *device;
	__u32 mtu = 0;

	if (!way->device) {
		if (!bl_tc_rewrite(skb, packet, &way->to, false))
			return TC_ACT_SHOT;
		return way->back ? bl_answer_return(skb, packet->l3, false) : BL_TC_PASS;
	}
	if (packet->ttl <= 1)
		return bl_answer_time_exceeded(skb, packet);
	device = bl_device_lookup(way->device);
	if (!device || !device->ifindex)
		return TC_ACT_SHOT;
	if (bpf_check_mtu(skb, device->ifindex, &mtu, 0, 0) == BPF_MTU_CHK_RET_FRAG_NEEDED)
		return bl_answer_too_big(skb, packet, mtu);
	if (!bl_tc_rewrite(skb, packet, &way->to, true))
		return TC_ACT_SHOT;
	return bpf_redirect_neigh(device->ifindex, NULL, 0, 0);
}

static __always_inline enum bl_tc_fate bl_tc_decide(struct __sk_buff *skb,
						    const struct bl_packet *packet,
						    enum bl_tc_hook hook, struct bl_tc_way *way)
{
	struct bl_flow_entry *flow = bpf_map_lookup_elem(&bl_flow, &packet->key);
	enum bl_tc_fate fate;

	if (flow && flow->bits & BL_FLOW_IS_REPLY)
		return bl_tc_reply_here(packet, flow, hook)
			       ? bl_tc_reply(skb, packet, hook, flow, way)
			       : BL_TC_PASSES;
	if (hook == BL_TC_POD_EGRESS)
		return BL_TC_PASSES;
	if (flow) {
		fate = bl_tc_client(skb, packet, hook, flow, way);
		if (fate != BL_TC_UNKNOWN)
			return fate;
	}
	if (packet->key.proto != IPPROTO_UDP &&
	    (packet->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK | BL_TCP_RST)) != BL_TCP_SYN)
		return BL_TC_PASSES; /* of a connection that somebody else set up */
	return bl_tc_new(skb, packet, hook, way);
}

/* Whether an ICMP error about a flow is translated at this hook, as the packets are. */
static __always_inline bool bl_tc_error_here(const struct bl_flow_entry *flow, enum bl_tc_hook hook)
{
	bool reply = flow->bits & BL_FLOW_IS_REPLY;
	bool pod = flow->bits & BL_FLOW_POD;

	switch (hook) {
	case BL_TC_POD_INGRESS:
		return !reply;
	case BL_TC_POD_EGRESS:
		return reply && pod;
	default:
		return !reply || !pod;
	}
}

/*
 * A packet that carries no Service: an echo request to an address of one is
 * answered, and an ICMP error about a packet of a flow goes to the side that sent that packet.
 */
__noinline int bl_tc_icmp(struct __sk_buff *skb, __u32 l3, enum bl_tc_hook hook)
{
	const struct bl_device_entry *device;
	struct bl_icmp_error error = {};
	struct bl_flow_entry *flow;
	struct bl_rewrite to = {};
	__u32 id;

	if (!bl_icmp_parse(skb, l3, &error))
		return hook == BL_TC_POD_EGRESS ? BL_TC_PASS
						: bl_echo(skb, l3, hook == BL_TC_EGRESS);
	flow = bpf_map_lookup_elem(&bl_flow, &error.key);
	if (!flow || !bl_tc_error_here(flow, hook))
		return BL_TC_PASS;
	to.src = flow->addr;
	to.src_port = flow->port;
	to.dst = flow->client;
	to.dst_port = flow->other_port;
	id = hook == BL_TC_INGRESS ? flow->device : 0;
	if (!(flow->bits & BL_FLOW_IS_REPLY)) {
		to.src = error.key.src;
		to.src_port = flow->other_port;
		to.dst = flow->addr;
		to.dst_port = flow->port;
		if (flow->bits & BL_FLOW_SNAT) {
			device = bl_device_lookup(flow->device);
			if (!device)
				return TC_ACT_SHOT;
			to.src = bl_device_addr(device, error.ipv4);
		}
	}
	device = id ? bl_device_lookup(id) : NULL;
	if (id && (!device || !device->ifindex || error.ttl <= 1))
		return TC_ACT_SHOT;
	if (!bl_icmp_rewrite(skb, &error, &to, id != 0))
		return TC_ACT_SHOT;
	return id ? bpf_redirect_neigh(device->ifindex, NULL, 0, 0) : BL_TC_PASS;
}

/* Keep what becomes of the first fragment of a datagram. */
static __noinline void bl_tc_keep_fate(const struct bl_packet *packet, enum bl_tc_hook hook,
				       enum bl_tc_fate fate, const struct bl_tc_way *way)
{
	struct bl_fragment_entry entry = {
		.to = way->to,
		.device = way->device,
		.second = bl_flow_now(),
		.fate = fate == BL_TC_REFUSED ? BL_TC_DROPPED : fate,
		.back = way->back,
	};
	struct bl_fragment_key key;

	bl_fragment_key(packet, hook, &key);
	if (fate == BL_TC_PASSES)
		bpf_map_delete_elem(&bl_fragment, &key);
	else
		bpf_map_update_elem(&bl_fragment, &key, &entry, BPF_ANY);
}

/* A later fragment: as its first one. */
static __noinline enum bl_tc_fate bl_tc_recall_fate(const struct bl_packet *packet,
						    enum bl_tc_hook hook, struct bl_tc_way *way)
{
	const struct bl_fragment_entry *entry;
	struct bl_fragment_key key;

	bl_fragment_key(packet, hook, &key);
	entry = bpf_map_lookup_elem(&bl_fragment, &key);
	if (!entry || bl_flow_now() - entry->second > BL_FRAGMENT_SECONDS)
		return BL_TC_PASSES;
	way->to = entry->to;
	way->device = entry->device;
	way->back = entry->back;
	return entry->fate;
}

static __always_inline int bl_tc_packet(struct __sk_buff *skb, __u32 l3, enum bl_tc_hook hook)
{
	struct bl_packet packet = {.leaves = hook == BL_TC_EGRESS};
	struct bl_tc_way way = {};
	enum bl_tc_fate fate;

	packet.plain = bl_packet_plain(skb, l3, &packet);
	if (!packet.plain && !bl_packet_parse(skb, l3, &packet))
		return bl_tc_icmp(skb, l3, hook);
	if (packet.part == BL_PACKET_LATER)
		fate = bl_tc_recall_fate(&packet, hook, &way);
	else
		fate = bl_tc_decide(skb, &packet, hook, &way);
	if (packet.part == BL_PACKET_FIRST)
		bl_tc_keep_fate(&packet, hook, fate, &way);
	switch (fate) {
	case BL_TC_TRANSLATED:
		return bl_tc_go(skb, &packet, &way);
	case BL_TC_REFUSED:
		return bl_answer_refused(skb, &packet);
	case BL_TC_DROPPED:
		return TC_ACT_SHOT;
	default:
		return BL_TC_PASS;
	}
}

SEC("tc")
int bl_ingress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_TC_INGRESS);
}

SEC("tc")
int bl_egress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_TC_EGRESS);
}

/* For devices whose packets have no Ethernet header. */
SEC("tc")
int bl_ingress_l3(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, 0, BL_TC_INGRESS);
}

SEC("tc")
int bl_egress_l3(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, 0, BL_TC_EGRESS);
}

/* For the host's side of the devices of pods whose sockets cannot be translated. */
SEC("tc")
int bl_pod_ingress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_TC_POD_INGRESS);
}

SEC("tc")
int bl_pod_egress(struct __sk_buff *skb)
{
	return bl_tc_packet(skb, ETH_HLEN, BL_TC_POD_EGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
