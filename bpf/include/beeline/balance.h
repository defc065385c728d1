/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The first packet of a flow: which backend it goes to, by which way, and from which
 * source. The program that includes this file says by BL_CONTEXT what its context is,
 * by bl_context_ct_lookup how it asks for tracked connections, by BL_ANSWERS whether it
 * answers what is refused, and by BL_SYN_FIRST whether it takes a SYN for the first packet of
 * a flow before it has looked for one.
 */
#pragma once

#include <beeline/conntrack.h>
#include <beeline/flow.h>
#include <beeline/node.h>
#include <beeline/peers.h>
#include <beeline/spread.h>
#include <beeline/way.h>

#define AF_INET 2
#define AF_INET6 10

enum bl_plan_limits {
	BL_PLAN_PORT_ATTEMPTS = 16,
	/* The ports that Linux gives to outgoing connections unless it is told otherwise. */
	BL_PLAN_CLIENT_PORT_MIN = 32768,
	BL_PLAN_CLIENT_PORTS = 28232,
};

/* Source ports of SNAT, host byte order, both included. */
volatile const __u16 bl_snat_port_min = 61000;
volatile const __u16 bl_snat_port_max = 65535;
/* Packets to backends on this node get a source address of the node, too. */
volatile const bool bl_masquerade_all;

/*
 * Where bl_device_of() found a device last, by the low bits of its interface index. A
 * hint alone: the device itself says whose it is.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BL_DEVICE_MAX);
	__type(key, __u32);
	__type(value, __u32);
} bl_device_hint SEC(".maps");

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

/* What is known of a flow with the addresses and ports of one that begins. */
enum bl_former {
	BL_FORMER_NONE,
	BL_FORMER_OVER, /* there was one, and it has just been removed */
	BL_FORMER_UNKNOWN, /* it has not been looked for */
	BL_FORMER_UNANSWERED, /* as over, but it had this node's address and no reply */
};

/* What a new flow is going to be. */
struct bl_plan {
	union bl_addr source BL_ALIGNED; /* towards the backend: the client's or this node's */
	union bl_addr backend;
	struct bl_backend_ref ref; /* of the backend */
	__u32 service;
	__u32 now; /* s, as bl_flow_now() */
	__be16 port; /* of the backend */
	__u16 node; /* to which the tunnel may take the packet; 0 is none */
	/* The backend is on this node and is to see the client's address. */
	bool keep : 1;
	__u8 former : 2; /* enum bl_former */
	__u8 client_device;
	__u8 device; /* the packet leaves by it; 0 is the host's stack */
	__u8 bits; /* BL_FLOW_SNAT, BL_FLOW_POD, BL_FLOW_TUNNEL */
};

/*
 * Index in bl_device of the device with this interface index, 0 when packets are not
 * served there.
 */
static __always_inline __u8 bl_device_of(__u32 ifindex)
{
	const struct bl_device_entry *device;
	__u32 at = ifindex % BL_DEVICE_MAX;
	__u32 *hint = bpf_map_lookup_elem(&bl_device_hint, &at);
	const __u32 *id;

	if (!hint)
		return 0;
	device = bl_device_lookup(*hint);
	if (device && device->ifindex == ifindex)
		return *hint;
	id = bpf_map_lookup_elem(&bl_device_id, &ifindex);
	if (!id)
		return 0;
	*hint = *id;
	return *id;
}

/*
 * Whether NodePorts are served at the address of @dst, as bl_node_addr_serves of another
 * host's client. What is found is kept for the rest of the second.
 */
static __always_inline bool bl_node_addr_serves_packet(const struct bl_dst *dst, __u32 now)
{
	__u32 at = (dst->high ^ dst->low) * 0x9e3779b97f4a7c15ULL >> (64 - BL_SERVED_SHIFT);
	struct bl_served_entry *served = bpf_map_lookup_elem(&bl_served, &at);

	if (!served)
		return false;
	if (served->second == now && bl_dst_has_addr(dst, &served->addr))
		return true;
	if (!bl_node_addr_serves(dst, 0))
		return false;
	bl_dst_get_addr(dst, &served->addr);
	served->second = now;
	return true;
}

/* The frontend behind the packet's destination, as bl_sock_frontend. */
static __always_inline struct bl_frontend_entry
bl_packet_frontend(const struct bl_packet *packet, __u32 now, enum bl_reason *reason)
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
	if (frontend.kind != BL_FRONTEND_NONE && bl_node_addr_serves_packet(&dst, now))
		return frontend;
	frontend.kind = BL_FRONTEND_NONE;
	*reason = bl_undeclared(&dst);
	return frontend;
}

/*
 * Whether a packet that came in by the device @id comes from inside of the cluster.
 * False, too, when that is the same to the frontend.
 */
static __always_inline bool bl_packet_internal(const struct bl_packet *packet,
					       struct bl_frontend_entry frontend, __u32 id)
{
	struct bl_cidr_key key = {.prefix_len = 128, .addr = packet->key.src};
	const struct bl_device_entry *device;

	if (!bl_masquerade_all && !(frontend.flags & BL_FRONTEND_INTERNAL_LOCAL) ==
					  !(frontend.flags & BL_FRONTEND_EXTERNAL_LOCAL))
		return false;
	device = bl_device_lookup(id);
	return (device && device->flags & BL_DEVICE_INTERNAL) ||
	       bpf_map_lookup_elem(&bl_local_cidr, &key) != NULL;
}

/* The backend of a new flow to @frontend. */
static __always_inline void bl_packet_select(const struct bl_packet *packet,
					     struct bl_frontend_entry frontend, bool internal,
					     const struct bl_service_entry *service,
					     const struct bl_service_stat_entry *stat,
					     struct bl_choice *choice)
{
	struct bl_client_key key = {.client = packet->key.src, .service = frontend.service};
	__u8 local = internal ? BL_FRONTEND_INTERNAL_LOCAL : BL_FRONTEND_EXTERNAL_LOCAL;
	__u32 member, spread;
	__u64 set;

	set = bl_service_set(service, frontend.flags & local, &member);
	spread = bl_packet_spread(packet, service, stat, frontend.service, set);
	if (!service->affinity)
		*choice = bl_set_select(set, spread);
	else if (!bl_affinity_recall(bpf_map_lookup_elem(&bl_client, &key), service,
				     frontend.service, member, bpf_ktime_get_coarse_ns(), choice))
		*choice = bl_affinity_select(&bl_new_client, service, &key, frontend.service, set,
					     member, spread);
	choice->member = member;
}

/*
 * Index of the device that a client whose packet comes by @hook is behind; 0 is for the
 * host's stack to know. A pod is asked for by its device only when its packets get
 * another source: other replies are translated where they reach it.
 */
static __always_inline __u8 bl_client_device(const struct bl_packet *packet, enum bl_hook hook)
{
	if (hook == BL_HOOK_POD_INGRESS)
		return BL_DEVICE_ROUTED;
	return hook == BL_HOOK_INGRESS ? bl_device_of(packet->ifindex) : 0;
}

/*
 * The source of a pod's packet. A pod that is its own backend must not see its own
 * address: it sees the Service's, so that the reply comes back here.
 */
static __always_inline void bl_pod_source(const struct bl_packet *packet,
					  const union bl_addr *backend, union bl_addr *source)
{
	*source = bl_addr_equal(backend, &packet->key.src) ? packet->key.dst : packet->key.src;
}

/* Ask a fib lookup for the way from @src to @dst. */
static __always_inline void bl_fib_addrs(struct bpf_fib_lookup *fib, bool ipv4,
					 const union bl_addr *src, const union bl_addr *dst)
{
	if (ipv4) {
		fib->family = AF_INET;
		fib->ipv4_src = src->word[3];
		fib->ipv4_dst = dst->word[3];
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, src, sizeof(fib->ipv6_src));
		__builtin_memcpy(fib->ipv6_dst, dst, sizeof(fib->ipv6_dst));
	}
}

/*
 * The interface index of the device by which a packet from @src, which is at the device
 * @ifindex, would reach @dst. 0 when it would not be forwarded, as to an address of this node.
 */
__noinline __u32 bl_route(struct BL_CONTEXT *context, __u32 ifindex, const union bl_addr *src,
			  const union bl_addr *dst, bool ipv4)
{
	struct bpf_fib_lookup fib = {.ifindex = ifindex};
	long ret;

	if (!src || !dst)
		return 0;
	bl_fib_addrs(&fib, ipv4, src, dst);
	ret = bpf_fib_lookup(context, &fib, sizeof(fib), 0);
	if (ret != BPF_FIB_LKUP_RET_SUCCESS && ret != BPF_FIB_LKUP_RET_NO_NEIGH)
		return 0;
	return fib.ifindex;
}

/*
 * Index in bl_device of the device by which the packet would reach the backend. 0,
 * which is the host's stack, unless replies are translated there: the backend is then
 * on another node, or it is to see this node for its client.
 */
static __always_inline __u8 bl_plan_device(struct BL_CONTEXT *context,
					   const struct bl_packet *packet,
					   const struct bl_plan *plan)
{
	__u32 ifindex =
		bl_route(context, packet->ifindex, &packet->key.src, &plan->backend, packet->ipv4);
	__u8 id = ifindex ? bl_device_of(ifindex) : 0;

	return ifindex && !id && bl_masquerade_all ? BL_DEVICE_ROUTED : id;
}

/* The entry of bl_backend_dev for @ref and device 0. */
static __always_inline __u64 bl_backend_dev_word(struct bl_backend_ref ref, __u32 now)
{
	__u64 word = ref.id >> BL_BACKEND_DEV_INDEX_BITS;

	word = word << BL_BACKEND_DEV_GENERATION_BITS |
	       (ref.generation & ((1 << BL_BACKEND_DEV_GENERATION_BITS) - 1));
	word = word << BL_BACKEND_DEV_SECOND_BITS | (now & ((1 << BL_BACKEND_DEV_SECOND_BITS) - 1));
	return word << BL_BACKEND_DEV_DEVICE_BITS;
}

/*
 * Whether a client is the backend's node, which takes no packet that comes from its own
 * address, or may be a pod there, which the reply would reach untranslated.
 */
static __always_inline bool bl_client_beside(const union bl_addr *client,
					     const struct bl_plan *plan)
{
	struct bl_cidr_key key = {.prefix_len = 128, .addr = *client};

	return bl_node_of(client) == plan->node ||
	       bpf_map_lookup_elem(&bl_local_cidr, &key) != NULL;
}

/*
 * Let the tunnel take the packet to the backend's node: by the device that the route
 * there leads to, if that has an address which the node can answer, and room. False
 * when the node takes nothing by the tunnel, or the client is there.
 */
static __noinline bool bl_plan_tunnel(struct BL_CONTEXT *context, const struct bl_packet *packet,
				      struct bl_plan *plan)
{
	const struct bl_node_entry *node = bl_node_lookup(plan->node);
	/* Beyond all backends. */
	struct bl_backend_ref ref = {.id = ~(__u32)plan->node};
	const struct bl_device_entry *device;
	union bl_addr to BL_ALIGNED, none BL_ALIGNED = {};
	__u32 at = ref.id % BL_BACKEND_DEV_ENTRIES;
	__u64 *hop, word, now;

	hop = bpf_map_lookup_elem(&bl_backend_dev, &at);
	if (!node || !hop || (node->flags & (BL_NODE_TUNNEL | BL_NODE_SELF)) != BL_NODE_TUNNEL ||
	    bl_client_beside(&packet->key.src, plan))
		return false;
	to = node->addr;
	word = *(volatile __u64 *)hop;
	now = bl_backend_dev_word(ref, plan->now);
	if (word >> BL_BACKEND_DEV_DEVICE_BITS != now >> BL_BACKEND_DEV_DEVICE_BITS) {
		word = now | bl_device_of(bl_route(context, packet->ifindex, &none, &to,
						   bl_addr_is_ipv4(&to)));
		*(volatile __u64 *)hop = word;
	}
	device = bl_device_lookup((__u8)word);
	if (!(__u8)word || !device || device->mtu < BL_TUNNEL_MTU_MIN ||
	    !bl_device_has_addr(device, bl_addr_is_ipv4(&to)))
		return false;
	plan->device = word;
	plan->bits |= BL_FLOW_TUNNEL;
	return true;
}

/*
 * Find out by which device the packet leaves and whether it gets another source. With
 * @output it is on its way out already and keeps its own.
 *
 * That a backend is on this node is not kept: its device may be about to be served.
 */
__noinline int bl_plan_route(struct BL_CONTEXT *context, const struct bl_packet *packet,
			     bool output, struct bl_plan *plan)
{
	const struct bl_device_entry *device;
	__u64 *hop, word, now;
	__u32 at;

	if (!packet || !plan)
		return 0;
	plan->source = packet->key.src;
	if (plan->keep || (plan->node && bl_plan_tunnel(context, packet, plan)))
		return 0;
	at = plan->ref.id % BL_BACKEND_DEV_ENTRIES;
	hop = bpf_map_lookup_elem(&bl_backend_dev, &at);
	if (!hop)
		return 0;
	word = *(volatile __u64 *)hop;
	now = bl_backend_dev_word(plan->ref, plan->now);
	if (word >> BL_BACKEND_DEV_DEVICE_BITS != now >> BL_BACKEND_DEV_DEVICE_BITS) {
		word = now | bl_plan_device(context, packet, plan);
		if (word != now)
			*(volatile __u64 *)hop = word;
	}
	plan->device = (__u8)word;
	if (output && plan->device == BL_DEVICE_ROUTED)
		plan->device = 0;
	if (output || !plan->device)
		return 0;
	device = bl_device_lookup(plan->device);
	if (!device)
		return 0;
	plan->bits |= BL_FLOW_SNAT;
	plan->source = bl_device_addr(device, packet->ipv4);
	return 0;
}

/*
 * Let a packet that leaves turn round to its backend on this node. No packet that comes
 * in by a device may have an address of this node as its source, and the reply has to
 * come by here: so the source is an address whose route is that of all others.
 */
static __always_inline bool bl_plan_turn(const struct bl_packet *packet, struct bl_plan *plan)
{
	const struct bl_device_entry *device = bl_device_lookup(BL_DEVICE_TURNED);

	if (!device)
		return false;
	plan->device = BL_DEVICE_TURNED;
	plan->client_device = BL_DEVICE_TURNED;
	plan->bits |= BL_FLOW_SNAT;
	plan->source = bl_device_addr(device, packet->ipv4);
	return true;
}

/*
 * Whether packets like @key, a reply's, are for a socket of this host, or of a connection
 * that netfilter translates. SCTP's are not known. A socket that listens does not count:
 * no backend sends to it from the port that it serves at.
 */
static __noinline bool bl_port_taken(struct BL_CONTEXT *context, const struct bl_flow_key *key,
				     bool ipv4)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	bool listens;
	__u32 size;

	if (key->proto == IPPROTO_SCTP)
		return false;
	size = bl_sock_tuple(ipv4, &key->src, key->src_port, &key->dst, key->dst_port, &tuple);
	if (bl_tracked(context, &tuple, size, key->proto))
		return true;
	if (key->proto == IPPROTO_TCP) {
		sk = bpf_skc_lookup_tcp(context, &tuple, size, BPF_F_CURRENT_NETNS, 0);
		if (!sk)
			return false;
		listens = sk->state == BPF_TCP_LISTEN;
		bpf_sk_release(sk);
		return !listens;
	}
	sk = bpf_sk_lookup_udp(context, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

/*
 * The source port that a flow takes by choice. It must not be one that somebody else takes
 * later for a connection to the same backend, for the packets of both would be mistaken
 * for each other: a client that keeps its address may connect to the backend itself, from
 * the same port, for to the client those are two different destinations; and so may this
 * node, which does not know of the ports of flows that have its address. So ports that
 * Linux is likely to take move aside, all by the same distance: whichever node translates
 * a connection, the backend sees the same port.
 */
static __always_inline __be16 bl_port_aside(__be16 port)
{
	__u16 host = bpf_ntohs(port);

	if ((__u16)(host - BL_PLAN_CLIENT_PORT_MIN) >= BL_PLAN_CLIENT_PORTS)
		return port;
	return bpf_htons(host - BL_PLAN_CLIENT_PORTS);
}

/*
 * Whether the entry at @key is that of the same flow as @reply: its forward entry has been
 * forgotten.
 */
static __always_inline bool bl_flow_is_reply(const struct bl_flow_key *key,
					     const struct bl_flow_entry *reply)
{
	const struct bl_flow_entry *there = bl_flow_lookup(key);

	return there && !((there->bits ^ reply->bits) & ~(BL_FLOW_STATE | BL_FLOW_TUNNEL)) &&
	       there->port == reply->port && there->other_port == reply->other_port &&
	       bl_addr_equal(&there->addr, &reply->addr) &&
	       bl_addr_equal(&there->client, &reply->client);
}

/*
 * Whether it is asked who else has a source port before a flow takes it. To ask costs as
 * much as all else that is done for a new flow but to store it, so a connection of TCP takes
 * the port and sees by what the backend answers whether somebody had it: see
 * bl_flow_disputes. The next one from the same port, and a SYN sent again, ask.
 */
static __always_inline bool bl_plan_asks(const struct bl_packet *packet, const struct bl_plan *plan)
{
	return plan->bits & BL_FLOW_SNAT &&
	       (plan->former == BL_FORMER_OVER || plan->former == BL_FORMER_UNANSWERED ||
		packet->key.proto != IPPROTO_TCP || !(packet->tcp_flags & BL_TCP_SYN));
}

/* A port of the SNAT range. */
static __always_inline __be16 bl_snat_port(void)
{
	__u32 range = bl_snat_port_max - bl_snat_port_min + 1;

	return bpf_htons(bl_snat_port_min + bpf_get_prandom_u32() % range);
}

/*
 * The source port that a flow begins with. What had no reply may have had the port of
 * somebody whom this node does not know: see bl_flow_begins_again.
 */
static __always_inline __be16 bl_plan_port(const struct bl_packet *packet,
					   const struct bl_plan *plan)
{
	if (plan->former == BL_FORMER_UNANSWERED && plan->bits & BL_FLOW_SNAT)
		return bl_snat_port();
	return bl_port_aside(packet->key.src_port);
}

/*
 * Insert the reply entry at the first source port that no other flow and, if that is asked,
 * nobody else has: that of the forward entry, else one of the SNAT range. The insertion
 * claims the port. False when none was free.
 */
static __always_inline bool bl_plan_claim(struct BL_CONTEXT *context,
					  const struct bl_packet *packet,
					  const struct bl_plan *plan,
					  const struct bl_flow_entry *reply,
					  struct bl_flow_entry *forward, struct bl_flow_key *key)
{
	bool asks = bl_plan_asks(packet, plan);

	for (int i = 0; i < BL_PLAN_PORT_ATTEMPTS; i++) {
		bl_flow_reply_key(&packet->key, forward, &plan->source, key);
		if (!(asks && bl_port_taken(context, key, packet->ipv4)) &&
		    (bl_flow_claim(key, reply) || bl_flow_is_reply(key, reply)))
			return true;
		forward->other_port = bl_snat_port();
	}
	return false;
}

/*
 * Refuse or drop a new connection to the Service of @stat, which may be NULL. A refusal
 * is counted by the program that answers.
 */
static __always_inline enum bl_fate bl_refuse(struct bl_service_stat_entry *stat,
					      enum bl_reason reason)
{
	bool drops = bl_reason_drops(reason);

	if (drops || BL_ANSWERS) {
		bl_count(reason);
		if (stat)
			stat->refused++;
	}
	return drops ? BL_FATE_DROPPED : BL_FATE_REFUSED;
}

/* The way of a client's packet by its flow's forward entry; its source is known. */
static __always_inline void bl_way_to_backend(const struct bl_flow_entry *forward,
					      struct bl_way *way)
{
	way->to.dst = forward->addr;
	way->to.src_port = forward->other_port;
	way->to.dst_port = forward->port;
	way->device = forward->device;
	way->tunnel = bl_flow_leaves_by_tunnel(forward);
}

/* Give a new flow a place among the half-open ones, or in bl_overflow. */
static __always_inline void bl_plan_share(struct bl_flow_entry *forward)
{
	if (bl_half_open_take())
		return;
	bl_count(BL_REASON_FLOW_OVERFLOW);
	forward->bits |= BL_FLOW_OVERFLOW;
}

/*
 * Whether a new flow need not be stored: nothing comes back this way, and each packet of it
 * finds the same backend by the ring. See bl_flow_begins, too.
 */
static __always_inline bool bl_plan_stateless(const struct bl_packet *packet,
					      const struct bl_flow_entry *forward)
{
	const struct bl_service_entry *service;

	if (!(forward->bits & BL_FLOW_OVERFLOW) || !bl_flow_leaves_by_tunnel(forward) ||
	    packet->key.proto == IPPROTO_SCTP)
		return false;
	service = bl_service_lookup(forward->forward.service);
	return service && service->algorithm == BL_ALGORITHM_MAGLEV;
}

/* Count why a new flow is not stored. */
static __always_inline enum bl_fate bl_plan_fail(const struct bl_flow_entry *forward,
						 enum bl_reason reason)
{
	bl_half_open_give(forward->bits);
	bl_count(reason);
	return BL_FATE_DROPPED;
}

/* Take back what has been noted of a flow that turns out to be there already. */
static __always_inline enum bl_fate bl_plan_withdraw(const struct bl_plan *plan,
						     const struct bl_flow_entry *forward)
{
	struct bl_service_stat_entry *stat = bl_service_stat_lookup(plan->service);

	bl_half_open_give(forward->bits);
	if (stat)
		stat->connections--;
	return BL_FATE_UNKNOWN;
}

/* Fill the forward entry of a new flow. */
static __always_inline void bl_plan_make_forward(const struct bl_packet *packet,
						 const struct bl_plan *plan,
						 struct bl_flow_entry *forward)
{
	forward->addr = plan->backend;
	forward->port = plan->port;
	forward->forward.backend = plan->ref;
	forward->forward.used = plan->now;
	forward->forward.service = plan->service;
	forward->touched = plan->now;
	forward->device = plan->device;
	forward->bits = BL_FLOW_NEW | plan->bits;
	forward->other_port =
		bl_flow_leaves_by_tunnel(forward) ? plan->node : bl_plan_port(packet, plan);
}

/*
 * Insert the reply entry of a flow whose forward entry is stored, which gets another source
 * port when that is taken. False, and the forward entry is gone, when there was none. @key is
 * left to be that of the forward entry.
 */
static __always_inline bool bl_plan_store_reply(struct BL_CONTEXT *context,
						const struct bl_packet *packet,
						const struct bl_plan *plan,
						struct bl_flow_entry *forward,
						struct bl_flow_key *key)
{
	struct bl_flow_entry reply = {}, *stored;
	__be16 port = forward->other_port;
	bool claimed;

	bl_flow_make_reply(&packet->key, forward, plan->client_device, plan->now, &reply);
	claimed = bl_plan_claim(context, packet, plan, &reply, forward, key);
	*key = packet->key;
	if (!claimed) {
		bl_flow_delete(key, forward->bits);
	} else if (unlikely(forward->other_port != port)) {
		stored = bl_flow_lookup(key);
		if (stored)
			stored->other_port = forward->other_port;
	}
	return claimed;
}

/*
 * Store the entries of a new flow and begin its way. With nothing stored, BL_FATE_DROPPED
 * when there was no free source port or no memory, BL_FATE_UNKNOWN when the flow is there
 * already.
 */
__noinline enum bl_fate bl_plan_store(struct BL_CONTEXT *context, const struct bl_packet *packet,
				      const struct bl_plan *plan, struct bl_way *way)
{
	struct bl_flow_entry forward = {};
	struct bl_flow_key key;

	if (!packet || !plan || !way)
		return BL_FATE_DROPPED;
	bl_plan_make_forward(packet, plan, &forward);
	bl_plan_share(&forward);
	key = packet->key;
	if (bl_plan_stateless(packet, &forward)) {
		if (plan->former == BL_FORMER_UNKNOWN && bl_flow_lookup(&key))
			return bl_plan_withdraw(plan, &forward);
	} else if (plan->former == BL_FORMER_UNKNOWN) {
		if (!bl_flow_claim(&key, &forward))
			return bl_plan_withdraw(plan, &forward);
	} else if (!bl_flow_store(&key, &forward)) {
		return bl_plan_fail(&forward, BL_REASON_FLOW_NOT_STORED);
	}
	if (!bl_flow_leaves_by_tunnel(&forward)) {
		if (!bl_plan_store_reply(context, packet, plan, &forward, &key))
			return bl_plan_fail(&forward, BL_REASON_NO_SOURCE_PORT);
		bl_peers_note(&plan->backend, &plan->source, plan->now);
	}
	way->to.src = plan->source;
	bl_way_to_backend(&forward, way);
	return BL_FATE_TRANSLATED;
}

/* Choose a backend for the first packet of a flow. */
__noinline enum bl_fate bl_plan_balance(const struct bl_packet *packet, enum bl_hook hook,
					struct bl_plan *plan)
{
	const struct bl_service_entry *service;
	struct bl_service_stat_entry *stat;
	struct bl_frontend_entry frontend;
	struct bl_choice choice;
	enum bl_reason reason;
	bool internal;

	if (!packet || !plan)
		return BL_FATE_DROPPED;
	plan->now = bl_flow_now();
	frontend = bl_packet_frontend(packet, plan->now, &reason);
	if (frontend.kind == BL_FRONTEND_NONE)
		return reason == BL_REASON_COUNT ? BL_FATE_PASSES : bl_refuse(NULL, reason);
	service = bl_service_lookup(frontend.service);
	stat = bl_service_stat_lookup(frontend.service);
	if (!service || !stat)
		return bl_refuse(NULL, BL_REASON_BROKEN_TABLE);
	if (frontend.flags & BL_FRONTEND_SOURCE_RANGES &&
	    !bl_source_in_range(frontend.service, &packet->key.src))
		return bl_refuse(stat, BL_REASON_SOURCE_RANGE);
	plan->client_device = bl_client_device(packet, hook);
	internal = hook != BL_HOOK_INGRESS ||
		   bl_packet_internal(packet, frontend, plan->client_device);
	bl_packet_select(packet, frontend, internal, service, stat, &choice);
	if (!choice.backend)
		return bl_refuse(stat, choice.reason);
	stat->connections++;
	plan->backend = choice.backend->addr;
	plan->port = choice.backend->port;
	plan->ref = choice.ref;
	plan->keep = choice.member == BL_BACKEND_LOCAL && !(bl_masquerade_all && internal);
	plan->service = frontend.service;
	if (bl_tunnel_port && hook == BL_HOOK_INGRESS && !bl_masquerade_all &&
	    service->forwarding == BL_FORWARDING_DSR)
		plan->node = choice.backend->node;
	return BL_FATE_TRANSLATED;
}

/*
 * The first packet of a flow. BL_FATE_UNKNOWN when that is there already, which only shows
 * with BL_FORMER_UNKNOWN.
 */
static __always_inline enum bl_fate bl_flow_begin(struct BL_CONTEXT *context,
						  const struct bl_packet *packet, enum bl_hook hook,
						  enum bl_former former, struct bl_way *way)
{
	struct bl_plan plan = {.former = former};
	enum bl_fate fate = bl_plan_balance(packet, hook, &plan);

	if (fate != BL_FATE_TRANSLATED)
		return fate;
	if (hook != BL_HOOK_POD_INGRESS || bl_masquerade_all)
		bl_plan_route(context, packet, hook == BL_HOOK_EGRESS, &plan);
	if (hook == BL_HOOK_POD_INGRESS && !plan.device) {
		plan.bits = BL_FLOW_POD;
		bl_pod_source(packet, &plan.backend, &plan.source);
	}
	if (hook == BL_HOOK_EGRESS && !plan.device && !bl_plan_turn(packet, &plan))
		return BL_FATE_DROPPED;
	fate = bl_plan_store(context, packet, &plan, way);
	way->back = hook == BL_HOOK_POD_INGRESS && bl_addr_equal(&way->to.dst, &packet->key.src);
	return fate;
}
