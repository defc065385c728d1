/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * By which device a packet leaves, whether that leads to another node, and from which address
 * of this node it then comes.
 */
#pragma once

#include <beeline/client.h>
#include <beeline/node.h>
#include <beeline/path.h>

#define AF_INET 2
#define AF_INET6 10

/*
 * Where bl_device_of() found a device last, by the low bits of its interface index. A
 * hint alone: the device itself says whose it is.
 */
static volatile __u8 bl_device_hint[BL_DEVICE_MAX];

/* What is known of a flow with the addresses and ports of one that begins. */
enum bl_former {
	BL_FORMER_NONE,
	BL_FORMER_OVER, /* there was one, and it has just been removed */
	BL_FORMER_UNKNOWN, /* it has not been looked for */
	BL_FORMER_CLASHED, /* as over, but its source port may be in use by another connection */
};

/* What a new flow is going to be. */
struct bl_plan {
	union bl_addr source BL_ALIGNED; /* towards the backend: the client's or this node's */
	union bl_addr backend;
	struct bl_backend_ref ref; /* of the backend */
	__be16 port; /* of the backend */
	__u16 node; /* to which the tunnel may take the packet; 0 is none */
	/* The backend is on this node and is to see the client's address. */
	bool keep : 1;
	bool on_node : 1; /* the backend's object says so */
	bool counted : 1; /* the flow is, in bl_active */
	bool refused : 1; /* a backend has refused the client's SYN, which comes again */
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
	volatile __u8 *hint = &bl_device_hint[ifindex % BL_DEVICE_MAX];
	const struct bl_device_entry *device;
	__u8 id = *hint;
	const __u32 *known;

	device = bl_device_lookup(id);
	if (device && device->ifindex == ifindex)
		return id;
	known = bpf_map_lookup_elem(&bl_device_id, &ifindex);
	if (!known)
		return 0;
	*hint = *known;
	return *known;
}

/*
 * Index of the device that a client whose packet comes by @hook is behind; 0 where the
 * host's stack decides, as it does for a pod's.
 */
static __always_inline __u8 bl_client_device(const struct bl_packet *packet, enum bl_hook hook)
{
	return hook == BL_HOOK_INGRESS ? bl_device_of(packet->ifindex) : 0;
}

/*
 * The source of a pod's packet. A pod that is its own backend must not see its own
 * address: it sees the Service's, so that the reply comes back here. Over UDP it sees the one of a
 * hairpin: a socket's datagram to the Service's address at the client's port would be refused.
 */
static __always_inline void bl_pod_source(const struct bl_packet *packet,
					  const union bl_addr *backend, union bl_addr *source)
{
	const struct bl_device_entry *hairpin;

	*source = packet->key.src;
	if (!bl_addr_equal(backend, &packet->key.src))
		return;
	*source = packet->key.dst;
	if (packet->key.proto != IPPROTO_UDP)
		return;
	hairpin = bl_device_lookup(BL_DEVICE_HAIRPIN);
	if (hairpin)
		*source = bl_device_addr(hairpin, packet->ipv4);
}

/* Fill in the addresses of a fib lookup from @src to @dst. */
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
 * Look up the route of a packet from @src, which is at the device @fib->ifindex, to @dst, as the
 * kernel does for one that it forwards. False when it would not be forwarded, as to an address of
 * this node; else @fib has the device that it leaves by and the next hop.
 * The kernel finds no route for a link-local source of IPv6, but this packet may get another one.
 * Whether the packet is too big for the device is not asked here.
 */
static __always_inline bool bl_fib(struct BL_CONTEXT *context, struct bpf_fib_lookup *fib,
				   const union bl_addr *src, const union bl_addr *dst, bool ipv4)
{
	long ret;

	bl_fib_addrs(fib, ipv4, src, dst);
	if (bl_addr_is_ipv6_link_local(src))
		__builtin_memset(fib->ipv6_src, 0, sizeof(fib->ipv6_src));
	ret = bpf_fib_lookup(context, fib, sizeof(*fib), 0);
	/*
	 * The kernel forwards IPv6 packets where the setting of all devices says so. The helper asks
	 * that of the device, which systemd-networkd has at 0 by itself; lo has what all have.
	 */
	if (!ipv4 && ret == BPF_FIB_LKUP_RET_FWD_DISABLED) {
		fib->ifindex = 1; /* LOOPBACK_IFINDEX */
		ret = bpf_fib_lookup(context, fib, sizeof(*fib), 0);
	}
	return ret == BPF_FIB_LKUP_RET_SUCCESS || ret == BPF_FIB_LKUP_RET_NO_NEIGH ||
	       ret == BPF_FIB_LKUP_RET_FRAG_NEEDED;
}

/* The interface index of the device by which that packet leaves; 0: it is not forwarded. */
__noinline __u32 bl_route(struct BL_CONTEXT *context, __u32 ifindex, const union bl_addr *src,
			  const union bl_addr *dst, bool ipv4)
{
	struct bpf_fib_lookup fib = {.ifindex = ifindex};

	if (!src || !dst)
		return 0;
	return bl_fib(context, &fib, src, dst, ipv4) ? fib.ifindex : 0;
}

/*
 * Index in bl_device of the device with this interface index, to which the route to a backend
 * leads, if replies are translated there: the backend is then on another node, else 0. What a
 * route does not tell that leads to pods of all nodes, the backend's object does: @on_node.
 */
static __always_inline __u8 bl_device_to_node(__u32 ifindex, bool on_node)
{
	__u8 id = ifindex ? bl_device_of(ifindex) : 0;
	const struct bl_device_entry *device = on_node ? bl_device_lookup(id) : NULL;

	return device && device->flags & BL_DEVICE_ALL_PODS ? 0 : id;
}

/*
 * Index in bl_device of the device by which the packet would reach a backend on another node.
 * Else the host's stack: 0, or BL_DEVICE_MASQUERADE for one that is to see this node for its
 * client.
 */
static __always_inline __u8 bl_plan_device(struct BL_CONTEXT *context,
					   const struct bl_packet *packet,
					   const struct bl_plan *plan)
{
	__u32 ifindex =
		bl_route(context, packet->ifindex, &packet->key.src, &plan->backend, packet->ipv4);
	__u8 id = bl_device_to_node(ifindex, plan->on_node);

	return ifindex && !id && bl_masquerade_all ? BL_DEVICE_MASQUERADE : id;
}

/*
 * Whether the device that one packet to a backend leaves by is that of all: no rule of routing looks at the
 * client's address or the device that it comes in by, as the agent has found a moment ago. Without
 * an agent it is false after a moment.
 */
static __always_inline bool bl_route_shared(void)
{
	return bl_flow_now() < bl_value(bl_tracking)->no_rules_until;
}

/* The entry of bl_backend_dev for @ref and device 0, in this jiffy. */
static __always_inline __u64 bl_backend_dev_word(struct bl_backend_ref ref)
{
	__u64 word = ref.id >> BL_BACKEND_DEV_INDEX_BITS;

	word = word << BL_BACKEND_DEV_GENERATION_BITS |
	       (ref.generation & ((1 << BL_BACKEND_DEV_GENERATION_BITS) - 1));
	word = word << BL_BACKEND_DEV_JIFFIES_BITS |
	       (bpf_jiffies64() & ((1 << BL_BACKEND_DEV_JIFFIES_BITS) - 1));
	return word << BL_BACKEND_DEV_DEVICE_BITS;
}

/*
 * Whether a client is the backend's node, which drops a packet from its own address as a
 * martian; or may be a pod there, which the reply would reach untranslated; or has a link-local
 * address, which no other node can answer.
 */
static __always_inline bool bl_client_beside(const union bl_addr *client,
					     const struct bl_plan *plan)
{
	struct bl_cidr_key key = {.prefix_len = 128, .addr = *client};

	return bl_addr_is_scoped(client) || bl_node_of(client) == plan->node ||
	       bpf_map_lookup_elem(&bl_local_cidr, &key) != NULL;
}

/*
 * Let the tunnel take the packet to the backend's node: by the device that the route
 * there leads to, if that has room, from an address that the node accepts. False
 * when the node does not accept tunnel traffic, or the client is there.
 */
static __noinline bool bl_plan_tunnel(struct BL_CONTEXT *context, const struct bl_packet *packet,
				      struct bl_plan *plan)
{
	const struct bl_node_entry *node = bl_node_lookup(plan->node);
	/* Beyond all backends. */
	struct bl_backend_ref ref = {.id = ~(__u32)plan->node};
	const struct bl_device_entry *device;
	union bl_addr to BL_ALIGNED, source BL_ALIGNED, none BL_ALIGNED = {};
	__u32 at = ref.id % BL_BACKEND_DEV_ENTRIES;
	__u64 *hop, word, now;

	hop = bpf_map_lookup_elem(&bl_backend_dev, &at);
	if (!node || !hop || (node->flags & (BL_NODE_TUNNEL | BL_NODE_SELF)) != BL_NODE_TUNNEL ||
	    bl_client_beside(&packet->key.src, plan))
		return false;
	to = node->addr;
	word = *(volatile __u64 *)hop;
	now = bl_backend_dev_word(ref);
	if (word >> BL_BACKEND_DEV_DEVICE_BITS != now >> BL_BACKEND_DEV_DEVICE_BITS ||
	    !bl_route_shared()) {
		word = now | bl_device_of(bl_route(context, packet->ifindex, &none, &to,
						   bl_addr_is_ipv4(&to)));
		*(volatile __u64 *)hop = word;
	}
	device = bl_device_lookup((__u8)word);
	if (!(__u8)word || !device || device->mtu < BL_TUNNEL_MTU_MIN ||
	    !bl_tunnel_source(device, bl_addr_is_ipv4(&to), &source))
		return false;
	plan->device = word;
	plan->bits |= BL_FLOW_TUNNEL;
	return true;
}

/*
 * Find out by which device the packet leaves and whether it gets another source. With
 * @output it leaves already and keeps its own. False, counted, when it is to get
 * an address that the device does not have.
 *
 * That a backend is on this node is not kept: its device may be about to be served.
 */
__noinline bool bl_plan_route(struct BL_CONTEXT *context, const struct bl_packet *packet,
			      bool output, struct bl_plan *plan)
{
	const struct bl_device_entry *device;
	__u64 *hop, word, now;
	__u32 at;

	if (!packet || !plan)
		return false;
	plan->source = packet->key.src;
	if (plan->keep || (plan->node && bl_plan_tunnel(context, packet, plan)))
		return true;
	at = plan->ref.id % BL_BACKEND_DEV_ENTRIES;
	hop = bpf_map_lookup_elem(&bl_backend_dev, &at);
	if (!hop)
		return true;
	word = *(volatile __u64 *)hop;
	now = bl_backend_dev_word(plan->ref);
	if (word >> BL_BACKEND_DEV_DEVICE_BITS != now >> BL_BACKEND_DEV_DEVICE_BITS ||
	    !bl_route_shared()) {
		word = now | bl_plan_device(context, packet, plan);
		if (word != now)
			*(volatile __u64 *)hop = word;
	}
	plan->device = (__u8)word;
	if (output && plan->device == BL_DEVICE_MASQUERADE)
		plan->device = 0;
	if (output || !plan->device || plan->device == BL_DEVICE_MASQUERADE)
		return true;
	device = bl_device_lookup(plan->device);
	if (!device)
		return true;
	plan->bits |= BL_FLOW_SNAT;
	plan->source = bl_device_addr(device, packet->ipv4);
	return bl_device_has_addr(device, packet->ipv4);
}

/*
 * The flow of a pod's packet, which goes up the stack, so that what netfilter refuses there
 * reaches no backend, on whichever node that is.
 */
static __always_inline void bl_plan_pod(const struct bl_packet *packet, struct bl_plan *plan)
{
	plan->bits = BL_FLOW_POD;
	if (bl_masquerade_all && !plan->keep) {
		plan->device = BL_DEVICE_MASQUERADE;
		plan->source = packet->key.src;
	} else {
		bl_pod_source(packet, &plan->backend, &plan->source);
	}
}

/*
 * Hairpin: send a packet that leaves back to its backend on this node. The kernel drops a packet
 * with an address of this node as its source as a martian, and the reply has to come by here: so
 * the source is an address whose route is the default one.
 */
static __always_inline bool bl_plan_hairpin(const struct bl_packet *packet, struct bl_plan *plan)
{
	const struct bl_device_entry *device = bl_device_lookup(BL_DEVICE_HAIRPIN);

	if (!device)
		return false;
	plan->device = BL_DEVICE_HAIRPIN;
	plan->client_device = BL_DEVICE_HAIRPIN;
	plan->bits |= BL_FLOW_SNAT;
	plan->source = bl_device_addr(device, packet->ipv4);
	return true;
}

/*
 * Follow the routes back to the client of a flow with SNAT: they may lead by another device
 * than its packets came in by. Where they lead nowhere, replies leave by that.
 */
static __noinline void bl_route_back(struct BL_CONTEXT *context, const struct bl_packet *packet,
				     struct bl_flow_reply *reply)
{
	__u32 ifindex =
		bl_route(context, packet->ifindex, &reply->service, &reply->client, packet->ipv4);
	__u8 id;

	if (!ifindex)
		return;
	id = bl_device_of(ifindex);
	reply->device = id ? id : BL_DEVICE_ROUTED;
}
